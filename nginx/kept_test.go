package nginx_test

import (
	"fmt"
	"testing"
)

// keptAnswer is an answer that a worker keeps.
type keptAnswer struct {
	Target    string `json:"target"`
	Tag       string `json:"tag"`
	TagLength int    `json:"tag_length"`
	Length    int    `json:"length"` // of the body
}

// TestKeptIsBounded: kept answers are counted as they are, also those that replace others, and within their bounds.
func TestKeptIsBounded(t *testing.T) {
	const mostAnswers, mostBytes = 1024, 16 << 20 // as engine.lua has them
	keep := func(answers ...keptAnswer) (count, size int) {
		t.Helper()
		var got [4]int
		call(t, &got, "kept_cases", "keep", answers)
		if got[0] != got[2] || got[1] != got[3] {
			t.Errorf("counted %d of %d bytes, there are %d of %d bytes", got[0], got[1], got[2], got[3])
		}
		if got[2] > mostAnswers || got[3] > mostBytes {
			t.Errorf("there are %d of %d bytes, want at most %d of %d", got[2], got[3], mostAnswers, mostBytes)
		}
		return got[2], got[3]
	}
	again := make([]keptAnswer, 100)
	for i := range again {
		again[i] = keptAnswer{"/again", "", 0, 1 << 20}
	}
	if count, _ := keep(append([]keptAnswer{{"/other", "", 0, 5}}, again...)...); count != 2 {
		t.Errorf("an answer that was kept again: there are %d, want it and the other one", count)
	}
	var tags, targets, questions []keptAnswer
	for i := range 3000 {
		tags = append(tags, keptAnswer{"/tags", fmt.Sprint(i), 10, i})
		targets = append(targets, keptAnswer{fmt.Sprint("/", i), "", 0, i % 100})
		questions = append(questions, keptAnswer{fmt.Sprint("/", i%400), fmt.Sprint(i), 30_000, 0})
	}
	if count, _ := keep(tags...); count != 4 {
		t.Errorf("of one target: there are %d, want 4", count)
	}
	keep(targets...)
	if count, size := keep(questions...); size < 30_000*count {
		t.Errorf("got %d bytes, want the entity-tags of %d included", size, count)
	}
	if count, _ := keep(keptAnswer{"/huge", "", 0, mostBytes/4 + 1}); count != 0 {
		t.Errorf("there are %d that are huge", count)
	}
}

// TestKeptByWhatCounts: targets whose queries don't matter have one kept answer.
func TestKeptByWhatCounts(t *testing.T) {
	targets := []string{"/a", "/a?x=1", "/a?x=2", "/a?x=2&y", "/a?x=1"}
	for _, tt := range []struct {
		name  string
		query any
		found int
	}{
		{"no parameter", []any{}, 1},
		{"all", nil, 4},
		{"some", []any{"y"}, 4},
	} {
		var got [1]int
		if call(t, &got, "kept_cases", "found", tt.query, targets); got[0] != tt.found {
			t.Errorf("%s: looked up %d times, want %d", tt.name, got[0], tt.found)
		}
	}
}
