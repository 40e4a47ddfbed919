package shrink_test

import (
	"maps"
	"testing"

	"github.com/gatehouse/gatehouse/internal/shrink"
	"github.com/gatehouse/gatehouse/internal/shrink/shrinktest"
)

func TestMap(t *testing.T) {
	const most = 100_000
	var size shrink.Map[int, [4]uint64]
	m := map[int][4]uint64{}
	for round := range 2 { // it grows again after it has shrunk
		shrinktest.GivesBack(t, func() {
			for i := range most {
				m[i] = [4]uint64{uint64(i)}
				size.Add(m)
			}
		}, func() {
			for i := range most - 3 {
				delete(m, i)
				m = size.Fit(m)
			}
		})
		want := map[int][4]uint64{}
		for i := most - 3; i < most; i++ {
			want[i] = [4]uint64{uint64(i)}
		}
		if !maps.Equal(m, want) {
			t.Fatalf("round %d: got %v, want %v", round, m, want)
		}
		clear(m)
		m = size.Fit(m)
	}
}

func TestSlice(t *testing.T) {
	of := func(n, capacity int) []int { return make([]int, n, capacity) }
	tests := []struct {
		name     string
		s        []int
		capacity int // wanted
	}{
		{"nil", nil, 0},
		{"empty", of(0, 64), 0},
		{"empty, small", of(0, 4), 0},
		{"a quarter", of(16, 64), 32},
		{"more than a quarter", of(17, 64), 64},
		{"small", of(1, 8), 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := shrink.Slice(tt.s); len(got) != len(tt.s) || cap(got) != tt.capacity {
				t.Errorf("got %d of capacity %d, want %d of %d", len(got), cap(got), len(tt.s), tt.capacity)
			}
		})
	}
}

func TestGrown(t *testing.T) {
	m := map[int]string{1: "a", 2: "b"}
	if got := shrink.Grown(m, 1000); !maps.Equal(got, m) {
		t.Errorf("got %v, want %v", got, m)
	}
	m = shrink.Grown(m, 1000)
	if times := testing.AllocsPerRun(1, func() {
		for i := range 1000 {
			m[i] = ""
		}
	}); times > 0 {
		t.Errorf("1000 entries were allocated %v times after Grown", times)
	}
}
