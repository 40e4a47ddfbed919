package stats

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBucketsHoldTheirValues(t *testing.T) {
	for _, v := range []time.Duration{0, 1, 127, 128, 255, 256, 257, 511, 512, 1000, 12345, time.Millisecond,
		time.Second, time.Hour, 1<<62 + 12345} {
		i := bucketOf(v)
		if got := upperBound(i); got < v || float64(got-v) > float64(v)/128+1 {
			t.Errorf("%d is in bucket %d, which ends at %d; want at most 1/128 above", v, i, got)
		}
		if got := bucketOf(upperBound(i)); got != i {
			t.Errorf("the end of bucket %d is in bucket %d", i, got)
		}
		if got := bucketOf(upperBound(i) + 1); got != i+1 {
			t.Errorf("what follows bucket %d is in bucket %d", i, got)
		}
	}
}

func TestQuantilesAreThoseOfTheValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var h Histogram
	var values []time.Duration
	for range 20_000 {
		v := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		h.Add(v)
		values = append(values, v)
	}
	slices.Sort(values)
	for _, q := range []float64{.01, .5, .9, .99, .999, 1} {
		want := values[int(q*float64(len(values)))-1]
		if got := h.Quantile(q); got < want || float64(got-want) > float64(want)/128+1 {
			t.Errorf("at %v: got %s, want %s", q, got, want)
		}
	}
	if got := h.Quantile(1); got != values[len(values)-1] {
		t.Errorf("at 1: got %s, want the maximum, exactly: %s", got, values[len(values)-1])
	}
}

func TestFewValues(t *testing.T) {
	var h Histogram
	if got := h.Quantile(.5); got != 0 {
		t.Errorf("of none: got %s, want 0", got)
	}
	h.Add(10)
	h.Add(20)
	h.Add(30)
	for _, test := range []struct {
		q    float64
		want time.Duration
	}{{0, 10}, {.33, 10}, {.34, 20}, {.5, 20}, {.67, 30}, {.999, 30}, {1, 30}} {
		if got := h.Quantile(test.q); got != test.want {
			t.Errorf("at %v: got %d, want %d", test.q, got, test.want)
		}
	}
}
