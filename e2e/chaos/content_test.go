package chaos

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func TestContent(t *testing.T) {
	c := Content{Seed: 7}
	seen := map[int]int{}
	for version := range uint64(2000) {
		body := c.Body(3, version+1)
		seen[len(body)]++
		if got, err := c.Parse(3, body); err != nil || got != version+1 {
			t.Fatalf("version %d: got %d, %v", version+1, got, err)
		}
	}
	for _, size := range append([]int{largeBody}, sizes[:]...) {
		if seen[size] == 0 {
			t.Errorf("no body has %d bytes: %v", size, seen)
		}
	}
	if !bytes.Equal(c.Body(3, 9), (Content{Seed: 7}).Body(3, 9)) {
		t.Error("the same seed makes another body")
	}
	for key := range 20 {
		if !limits.ValidKey(storedKey(key)) {
			t.Errorf("%q is no key", storedKey(key))
		}
		if got, err := c.Parse(key, c.Body(key, 9)); err != nil || got != 9 {
			t.Errorf("%s: got %d, %v", storedKey(key), got, err)
		}
	}
}

func TestContentRefusesWhatWasNotPublished(t *testing.T) {
	c := Content{Seed: 7}
	body := c.Body(3, 9)
	flipped := bytes.Clone(body)
	flipped[len(flipped)-1] ^= 1
	for _, tt := range []struct {
		name string
		body []byte
		want string
	}{
		{"another key", c.Body(4, 9), "the body of /chaos/004 version 9"},
		{"another run", Content{Seed: 8}.Body(3, 9), "not the body of version 9"},
		{"a flipped bit", flipped, "the first difference is at"},
		{"truncated", body[:len(body)-1], "not the body"},
		{"another version's rest", append(bytes.Clone(body[:headerSize]), c.Body(3, 10)[headerSize:]...), "not the body"},
		{"empty", nil, "names no key"},
		{"the upstream's", []byte(`{"method":"GET","path":"/chaos/fetch/003"}`), "names no key"},
	} {
		if version, err := c.Parse(3, tt.body); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %d, %v; want %q", tt.name, version, err, tt.want)
		}
	}
}

func TestETag(t *testing.T) {
	for _, tt := range []struct {
		tag  string
		want uint64 // 0: refused
	}{
		{etagOf(3, 12), 12},
		{"W/" + etagOf(3, 12), 12},
		{etagOf(4, 12), 0},
		{`"k003.v"`, 0},
		{"", 0},
	} {
		if got, err := parseETag(3, tt.tag); got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%s: got %d, %v; want %d", tt.tag, got, err, tt.want)
		}
		if tt.want != 0 && !limits.ValidETag(strings.TrimPrefix(tt.tag, "W/")) {
			t.Errorf("%s is no entity-tag", tt.tag)
		}
	}
}
