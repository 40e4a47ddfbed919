package entitytag

import (
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func TestIn(t *testing.T) {
	const etag = `"abc"`
	tests := []struct {
		list string
		want bool // by weak comparison
	}{
		{`"abc"`, true},
		{`W/"abc"`, true},
		{`*`, true},
		{` * `, true},
		{`"x", "abc"`, true},
		{`"x",W/"abc" , "y"`, true},
		{`,, "abc"`, true},
		{strings.Repeat(`"x",`, 300) + `"abc"`, true},
		{strings.Repeat(`W/"x" , `, 300) + `W/"abc"`, true},
		{strings.Repeat(",", 300) + `"abc"`, true},
		{`"a,b", "abc"`, true},
		{``, false},
		{`"abd"`, false},
		{`"abc`, false},
		{`abc`, false},
		{`"x", abc`, false},
		{`"x" *`, false},
		{`w/"abc"`, false},
		{`"", "abcd"`, false},
		{`W/`, false},
		{`"`, false},
	}
	for _, tt := range tests {
		if got := InList(tt.list, etag, true); got != tt.want {
			t.Errorf("In(%q, %q): got %v, want %v", tt.list, etag, got, tt.want)
		}
		if got, want := InList(tt.list, etag, false), tt.want && !strings.Contains(tt.list, `W/"abc"`); got != want {
			t.Errorf("In(%q, %q), strongly: got %v, want %v", tt.list, etag, got, want)
		}
	}
}

func FuzzIn(f *testing.F) {
	f.Add(`W/"a", "b,c"`, `"a"`)
	f.Fuzz(func(t *testing.T, list, tag string) {
		etag := `"` + tag + `"`
		if !limits.ValidETag(etag) {
			return
		}
		InList(list, etag, true) // doesn't panic
		if !InList(`"other-`+tag+`", W/`+etag, etag, true) {
			t.Errorf("a list with %s doesn't match it", etag)
		}
	})
}
