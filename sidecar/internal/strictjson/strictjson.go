// Package strictjson reads JSON in which nothing is ignored, and nothing replaced.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrText: a string isn't Unicode text; encoding/json would replace what isn't by U+FFFD.
var ErrText = errors.New(`not Unicode text: a byte that isn't UTF-8, or half of a surrogate pair, such as \ud800`)

// Decode reads into v the JSON value that r has, and nothing else; names that v lacks are an error.
func Decode(r io.Reader, v any) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	if !utf8.Valid(text) || !paired(text) {
		return ErrText
	}
	return nil
}

// paired reports whether each surrogate in JSON, where a backslash is only in strings, is half of a pair.
func paired(text []byte) bool {
	for {
		start := bytes.IndexByte(text, '\\')
		if start < 0 {
			return true
		}
		text = text[start:]
		r, size := escaped(text), 6
		switch {
		case r < 0:
			size = 2
		case utf16.IsSurrogate(r):
			if size = 12; utf16.DecodeRune(r, escaped(text[6:])) == utf8.RuneError {
				return false
			}
		}
		text = text[size:]
	}
}

// escaped returns the code unit of the escape \uXXXX that text begins with, -1 if it doesn't.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
