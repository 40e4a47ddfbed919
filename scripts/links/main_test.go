package main

import (
	"io/fs"
	"slices"
	"testing"
)

func TestCheck(t *testing.T) {
	files := map[string]string{
		"README.md": "[a](docs/a.md#one-two) [b](docs/b.md) [c](docs/a.md#three) [d](#here) [e](#there)\n" +
			"[f](https://x.example/y.md)\n\n# `Here`!\n\n    [not a link](in/code.md)\n",
		"docs/a.md":       "# One, two\n[up](../README.md)\n",
		"x/y.go":          "package y // docs/a.md, see docs/gone.md and README.md\n",
		"x/z.yaml":        "a: https://github.com/gatehouse/gatehouse/blob/v1/docs/a.md#a\nb: https://github.com/gatehouse/gatehouse/blob/main/b.md\n",
		"x/not-tracked.c": "no.md",
	}
	read := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	got := check(read, []string{"README.md", "docs/a.md", "x/y.go", "x/z.yaml", "x/not-tracked.c"})
	want := []string{
		"README.md: docs/b.md does not exist",
		"README.md: docs/a.md#three does not exist",
		"README.md: #there does not exist",
		"x/y.go: docs/gone.md does not exist",
		"x/z.yaml: b.md does not exist",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
