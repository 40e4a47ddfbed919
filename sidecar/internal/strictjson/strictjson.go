// Package strictjson reads JSON in which nothing is ignored.
package strictjson

import (
	"encoding/json"
	"errors"
	"io"
)

// Decode reads into v the JSON value that r has, and nothing else; names that v lacks are an error.
func Decode(r io.Reader, v any) error {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
