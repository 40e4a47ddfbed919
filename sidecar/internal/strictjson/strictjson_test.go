package strictjson

import (
	"errors"
	"strings"
	"testing"
)

// TestDecode: what would be ignored or changed is an error.
func TestDecode(t *testing.T) {
	for _, test := range []struct {
		text, want string // want: the text of a, "" for an error
		unicode    bool   // the error is ErrText
	}{
		{text: `{"a": "é\n\u00e9"}`, want: "é\né"},
		{text: `{"a": "\ud83d\ude00, \uD83D\uDE00"}`, want: "😀, 😀"},
		{text: `{"a": "\\ud800\\"}`, want: `\ud800\`},
		{text: `{"a": "\ufffd"}`, want: "\ufffd"},
		{text: `{"a": "x\ud800"}`, unicode: true},
		{text: `{"a": "\udc00\ud800"}`, unicode: true},
		{text: `{"a": "\uD83Dx\uDE00"}`, unicode: true},
		{text: `{"a": "\ud83d\\ude00"}`, unicode: true},
		{text: `{"a": "\ud83d\ud83d\ude00"}`, unicode: true},
		{text: `{"a": "\\\ud800"}`, unicode: true},
		{text: `{"\udfff": "x"}`}, // no such name
		{text: "{\"a\": \"\xe9\"}", unicode: true},
		{text: `{"a": "\ud8"}`},
		{text: `{"a": "x", "b": "y"}`},
		{text: `{"a": "x"} {}`},
		{text: `{"a": "x"`},
		{text: `\`},
		{text: ``},
	} {
		var got struct {
			A string `json:"a"`
		}
		err := Decode(strings.NewReader(test.text), &got)
		if (err == nil) != (test.want != "") || err == nil && got.A != test.want || errors.Is(err, ErrText) != test.unicode {
			t.Errorf("%s: %q, %v", test.text, got.A, err)
		}
	}
}
