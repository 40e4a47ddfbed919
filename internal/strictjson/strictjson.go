// Package strictjson reads JSON without ignoring or replacing anything.
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

// Decode reads exactly one JSON value from r into v. Names that v lacks, names in another case, and duplicate names are
// errors: encoding/json ignores the case, and takes the last duplicate, where other readers take the first.
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
	if !utf8.Valid(text) || !hasPairedSurrogates(text) {
		return ErrText
	}
	return checkNames(json.NewDecoder(bytes.NewReader(text)), reflect.TypeOf(v))
}

// checkNames reads a value that encoding/json has decoded to a value of type t; t is nil if the type doesn't define
// names.
func checkNames(d *json.Decoder, t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := d.Token()
	switch token {
	case json.Delim('['):
		for err == nil && d.More() {
			err = checkNames(d, elementType(t, reflect.Slice))
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for err == nil && d.More() {
			key, wrong := d.Token()
			if wrong != nil {
				return wrong
			}
			name, of := key.(string), elementType(t, reflect.Map) // all keys are strings
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
			err = checkNames(d, of)
		}
	default:
		return err
	}
	if err == nil {
		_, err = d.Token() // the end
	}
	return err
}

// elementType returns the type of a collection's values, nil if t isn't of this kind.
func elementType(t reflect.Type, kind reflect.Kind) reflect.Type {
	if t == nil || t.Kind() != kind {
		return nil
	}
	return t.Elem()
}

// fieldOf returns the field of a struct with this name in JSON.
func fieldOf(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, field := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); cmp.Or(tag, field.Name) == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

// hasPairedSurrogates reports whether each surrogate in JSON, where a backslash is only in strings, is half of a pair.
func hasPairedSurrogates(text []byte) bool {
	for {
		start := bytes.IndexByte(text, '\\')
		if start < 0 {
			return true
		}
		text = text[start:]
		r, size := decodeEscape(text), 6
		switch {
		case r < 0:
			size = 2
		case utf16.IsSurrogate(r):
			if size = 12; utf16.DecodeRune(r, decodeEscape(text[6:])) == utf8.RuneError {
				return false
			}
		}
		text = text[size:]
	}
}

// decodeEscape returns the code unit of the escape \uXXXX at the beginning of text, -1 if text begins differently.
func decodeEscape(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
