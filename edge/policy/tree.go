package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// ParseBytes decodes a configuration from the proxy: JSON for a google.protobuf.StringValue or, for a
// google.protobuf.Struct, the message in protobuf's binary form.
func ParseBytes(raw []byte) (*Config, error) {
	if len(raw) == 0 {
		return nil, errors.New("configuration: is empty; for the push listener, set push_listener: true")
	}
	var tree any
	jsonErr := json.Unmarshal(raw, &tree)
	if jsonErr == nil {
		return Parse(tree)
	}
	fields, err := structTree(raw, 0)
	if err != nil {
		return nil, fmt.Errorf("configuration: neither JSON (%w) nor a google.protobuf.Struct (%w)", jsonErr, err)
	}
	return Parse(fields)
}

// maxDepth bounds the nesting of a Struct; rules of virtual hosts need nine levels.
const maxDepth = 32

var errStruct = errors.New("malformed")

// structTree reads a google.protobuf.Struct: map<string, Value> fields = 1.
func structTree(b []byte, depth int) (map[string]any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	fields := map[string]any{}
	err := eachField(b, func(num protowire.Number, typ protowire.Type, entry []byte) error {
		if num != 1 || typ != protowire.BytesType {
			return errStruct
		}
		var key string
		var value any
		err := eachField(entry, func(num protowire.Number, typ protowire.Type, b []byte) (err error) {
			switch {
			case num == 1 && typ == protowire.BytesType:
				key = string(b)
			case num == 2 && typ == protowire.BytesType:
				value, err = valueTree(b, depth+1)
			default:
				err = errStruct
			}
			return err
		})
		fields[key] = value
		return err
	})
	return fields, err
}

// valueTree reads a google.protobuf.Value: null = 1, number = 2, string = 3, bool = 4, Struct = 5 or ListValue = 6.
func valueTree(b []byte, depth int) (value any, err error) {
	err = eachField(b, func(num protowire.Number, typ protowire.Type, b []byte) (err error) {
		switch {
		case num == 1 && typ == protowire.VarintType:
			value = nil
		case num == 2 && typ == protowire.Fixed64Type:
			bits, _ := protowire.ConsumeFixed64(b)
			value = math.Float64frombits(bits)
		case num == 3 && typ == protowire.BytesType:
			value = string(b)
		case num == 4 && typ == protowire.VarintType:
			n, _ := protowire.ConsumeVarint(b)
			value = protowire.DecodeBool(n)
		case num == 5 && typ == protowire.BytesType:
			value, err = structTree(b, depth+1)
		case num == 6 && typ == protowire.BytesType:
			value, err = listTree(b, depth+1)
		default:
			err = errStruct
		}
		return err
	})
	return value, err
}

// listTree reads a google.protobuf.ListValue: repeated Value values = 1.
func listTree(b []byte, depth int) ([]any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	list := []any{}
	err := eachField(b, func(num protowire.Number, typ protowire.Type, b []byte) error {
		if num != 1 || typ != protowire.BytesType {
			return errStruct
		}
		value, err := valueTree(b, depth+1)
		list = append(list, value)
		return err
	})
	return list, err
}

// eachField calls f with each field of a message and the bytes of its value, without a length prefix.
func eachField(b []byte, f func(protowire.Number, protowire.Type, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errStruct
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return errStruct
		}
		value := b[:size]
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := f(num, typ, value); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}
