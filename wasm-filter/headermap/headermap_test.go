package headermap

import (
	"slices"
	"strings"
	"testing"
)

func TestMalformed(t *testing.T) {
	good := Append(nil, [][2]string{{"a", "b"}, {"c", "d"}})
	for end := range len(good) {
		if got, ok := Parse(good[:end:end]); ok {
			t.Errorf("cut at %d of %d: got %q, want it to be malformed", end, len(good), got)
		}
	}
}

func TestHeaders(t *testing.T) {
	tests := map[string][][2]string{
		"none":    nil,
		"some":    {{":path", "/"}, {"a", "1"}, {"a", "2"}},
		"empty":   {{"", ""}, {"a", ""}, {"", "v"}},
		"NUL":     {{"a", "x\x00y"}},
		"64 KiB":  {{"a", strings.Repeat("x", 64<<10)}, {"b", "after"}},
		"hundred": slices.Repeat([][2]string{{"name", "value"}}, 100),
	}
	for name, headers := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := Parse(Append(nil, headers)); !ok || !slices.Equal(got, headers) {
				t.Errorf("got %q, %v; want %q", got, ok, headers)
			}
		})
	}
}

func TestLengths(t *testing.T) {
	long := strings.Repeat("x", 100)
	fields, ok := ParseFields(Append(nil, [][2]string{{"a", "1"}, {"bb", "2"}, {long, "3"}, {"d", "4"}}))
	if want := LengthBit(1) | LengthBit(2) | LengthBit(63); !ok || fields.Lengths != want {
		t.Errorf("got %b, want %b", fields.Lengths, want)
	}
}

// TestGolden is the form that the proxy reads and writes.
func TestGolden(t *testing.T) {
	const want = "\x02\x00\x00\x00" + "\x01\x00\x00\x00\x02\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" + "a\x00bc\x00" + "de\x00\x00"
	if got := Append(nil, [][2]string{{"a", "bc"}, {"de", ""}}); string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"))
	f.Add(Append(nil, [][2]string{{"a", "b"}, {"c", "d"}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, ok := Parse(raw) // doesn't panic
		if again, _ := Parse(Append(nil, all)); ok && !slices.Equal(again, all) {
			t.Errorf("got %q, want %q", again, all)
		}
	})
}
