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

// rowJSON returns a row as a JSON object, its columns in their order.
func rowJSON(columns []column) []byte {
	body := []byte{'{'}
	for i, c := range columns {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(append(append(body, quoteJSON(c.name)...), ':'), c.valueJSON()...)
	}
	return append(body, '}')
}

// valueJSON returns the value in JSON: numbers, booleans and JSON as such, everything else as a string.
func (c column) valueJSON() []byte {
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
	return quoteJSON(string(c.text))
}

func quoteJSON(text string) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // never fails
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
