package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// structBytes returns a JSON object in the form in which Envoy passes a Struct.
func structBytes(t testing.TB, text string) []byte {
	t.Helper()
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &fields))
	s, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	b, err := proto.Marshal(s)
	require.NoError(t, err)
	return b
}

func TestParseBytes(t *testing.T) {
	want := mustParse(t, full)
	for name, raw := range map[string][]byte{"JSON": []byte(full), "Struct": structBytes(t, full)} {
		if got, err := ParseBytes(raw); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
		}
	}
	tests := []struct {
		name string
		raw  []byte
		want string
	}{
		{"empty", nil, "configuration: is empty"},
		{"text", []byte("rules: []"), "configuration: neither JSON"},
		{"truncated Struct", structBytes(t, full)[:len(structBytes(t, full))-1], "configuration: neither JSON"},
		{"wrong types in a Struct", structBytes(t, `{"max_staleness": 30, "rules": true, "push_listener": null}`),
			"max_staleness: is 30, want a duration"},
	}
	for _, tt := range tests {
		if _, err := ParseBytes(tt.raw); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q…", tt.name, err, tt.want)
		}
	}
}

// FuzzParseBytes compares the decoder of Structs with protobuf's own.
func FuzzParseBytes(f *testing.F) {
	f.Add(structBytes(f, full))
	f.Add(structBytes(f, `{"a": [null, 1.5, "x", true, {"b": []}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := structTree(raw, 0)
		var want structpb.Struct
		if err != nil || proto.Unmarshal(raw, &want) != nil {
			return
		}
		a, errA := json.Marshal(got)
		b, errB := json.Marshal(want.AsMap())
		if errA == nil && errB == nil && string(a) != string(b) {
			t.Errorf("got %s, want %s", a, b)
		}
	})
}
