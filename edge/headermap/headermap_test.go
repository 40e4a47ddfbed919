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

func TestMarks(t *testing.T) {
	names := []string{"abcdef", "x-gatehouse-device", strings.Repeat("x", 100)}
	var headers [][2]string
	var want uint64
	for _, name := range names {
		headers = append(headers, [2]string{name, ""})
		want |= NameBit(name)
	}
	for range names {
		if fields, ok := ParseFields(Append(nil, headers)); !ok || fields.NameBits != want {
			t.Errorf("%q: got %b, want %b", headers, fields.NameBits, want)
		}
		headers = append(headers[1:], headers[0]) // so that each is the last one once
	}
	if NameBit("x-gatehouse-device") == NameBit("x-hatehouse-device") {
		t.Error("two names with other letters have one mark")
	}
}

// TestGolden pins the form that the proxy reads and writes.
func TestGolden(t *testing.T) {
	const want = "\x02\x00\x00\x00" + "\x01\x00\x00\x00\x02\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" +
		"a\x00bc\x00" + "de\x00\x00"
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
