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
		{text: `{"A": "x"}`},
		{text: `{"a": "x", "A": "y"}`},
		{text: `{"a": "x", "a": "y"}`},
		{text: `{"a": "x", "\u0061": "x"}`},
		{text: `{"a": "x", "m": {"k": {"c": 1}, "K": {"c": 1}}, "l": [{"d": [{"x": 1, "X": 2}]}, {"d": null}]}`, want: "x"},
		{text: `{"a": "x", "m": {"k": {"c": 1}, "k": {"c": 1}}}`},
		{text: `{"a": "x", "m": {"k": {"C": 1}}}`},
		{text: `{"a": "x", "m": {"k": {"c": 1, "c": 2}}}`},
		{text: `{"a": "x", "l": [{"d": 1}, {"D": 1}]}`},
		{text: `{"a": "x", "l": [{"d": {"x": [{"y": 1, "y": 1}]}}]}`},
		{text: `{"a": "x", "p": {"c": 1}}`, want: "x"},
		{text: `{"a": "x", "p": {"C": 1}}`},
		{text: `{"a": "x", "\u017f": 1, "s": 1}`}, // a long s, which encoding/json takes for an s
		{text: `{"a": "x"} {}`},
		{text: `{"a": "x"`},
		{text: `\`},
		{text: ``},
	} {
		type inner struct {
			C int `json:"c"`
		}
		var got struct {
			A string           `json:"a"`
			M map[string]inner `json:"m"`
			L []struct {
				D any `json:"d"`
			} `json:"l"`
			P *inner `json:"p,omitempty"`
			S int    `json:"s"`
		}
		err := Decode(strings.NewReader(test.text), &got)
		if (err == nil) != (test.want != "") || err == nil && got.A != test.want || errors.Is(err, ErrText) != test.unicode {
			t.Errorf("%s: %q, %v", test.text, got.A, err)
		}
	}
}
