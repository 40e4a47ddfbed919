// Package strictjson reads JSON in which nothing is ignored, and nothing replaced.
package strictjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrText: a string isn't Unicode text; encoding/json would replace what isn't by U+FFFD.
var ErrText = errors.New(`not Unicode text: a byte that isn't UTF-8, or half of a surrogate pair, such as \ud800`)

// Decode reads into v the JSON value that r has, and nothing else. An error are names that v lacks, or has in another
// case, and those that come twice: encoding/json ignores the case, and takes the last one, where others take the first.
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
	return exact(json.NewDecoder(bytes.NewReader(text)), reflect.TypeOf(v))
}

// exact reads a value, which encoding/json has decoded to a value of type t; nil if its type doesn't tell names.
func exact(d *json.Decoder, t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := d.Token()
	switch token {
	case json.Delim('['):
		for err == nil && d.More() {
			err = exact(d, element(t, reflect.Slice))
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for err == nil && d.More() {
			key, wrong := d.Token()
			if wrong != nil {
				return wrong
			}
			name, of := key.(string), element(t, reflect.Map) // all keys are strings
			if t != nil && t.Kind() == reflect.Struct {
				field, found := fieldOf(t, name)
				if !found {
					return fmt.Errorf("unknown field %q", name)
				}
				of = field.Type
			}
			if seen[name] {
				return fmt.Errorf("%q comes twice", name)
			}
			seen[name] = true
			err = exact(d, of)
		}
	default:
		return err
	}
	if err == nil {
		_, err = d.Token() // the end
	}
	return err
}

// element returns the type of a collection's values, nil if t isn't of this kind.
func element(t reflect.Type, kind reflect.Kind) reflect.Type {
	if t == nil || t.Kind() != kind {
		return nil
	}
	return t.Elem()
}

// fieldOf returns the field of a struct that JSON calls name.
func fieldOf(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, field := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); cmp.Or(tag, field.Name) == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
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
