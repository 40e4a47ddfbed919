package main

import (
	"bytes"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgtype"
)

// column is a value of a row in Postgres's text format; nil is NULL.
type column struct {
	name     string
	dataType uint32 // OID
	text     []byte
}

// object returns a row as a JSON object, its columns in their order.
func object(columns []column) []byte {
	body := []byte{'{'}
	for i, c := range columns {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(append(append(body, quoted(c.name)...), ':'), c.json()...)
	}
	return append(body, '}')
}

// json returns the value in JSON: numbers, booleans and JSON as such, everything else as a string.
func (c column) json() []byte {
	if c.text == nil {
		return []byte("null")
	}
	switch c.dataType {
	case pgtype.BoolOID:
		if string(c.text) == "t" {
			return []byte("true")
		}
		return []byte("false")
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Float4OID, pgtype.Float8OID, pgtype.NumericOID,
		pgtype.JSONOID, pgtype.JSONBOID:
		if json.Valid(c.text) { // NaN is invalid
			return c.text
		}
	}
	return quoted(string(c.text))
}

func quoted(text string) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // never fails
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
