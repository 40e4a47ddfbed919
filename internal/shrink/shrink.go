// Package shrink gives back memory of maps and slices that hold far less than before. Go would keep the memory: a map
// never shrinks, and a slice keeps its array.
package shrink

import "maps"

// least is the capacity below which shrinking saves nothing worth a copy.
const least = 8

// Map is the size of a map over time; the zero value is that of an empty map. Call [Map.Add] after each insertion.
type Map[K comparable, V any] struct {
	most int // maximum number of entries since the map was made
}

// Add records the size of the map.
func (s *Map[K, V]) Add(m map[K]V) { s.most = max(s.most, len(m)) }

// Fit returns m, or a copy if m holds at most a quarter of its former maximum. Call Fit after deletions, but not while
// the caller ranges over m.
func (s *Map[K, V]) Fit(m map[K]V) map[K]V {
	if s.most <= least || len(m) > s.most/4 {
		return m
	}
	fit := make(map[K]V, len(m))
	for key, value := range m {
		fit[key] = value
	}
	s.most = len(m)
	return fit
}

// Grown returns m with room for n more entries.
func Grown[K comparable, V any](m map[K]V, n int) map[K]V {
	if n <= 0 {
		return m
	}
	grown := make(map[K]V, len(m)+n)
	maps.Copy(grown, m)
	return grown
}

// Slice returns s, or a copy if s holds at most a quarter of its capacity; nil if s is empty.
func Slice[S ~[]E, E any](s S) S {
	switch {
	case cap(s) <= least && len(s) > 0 || len(s) > cap(s)/4:
		return s
	case len(s) == 0:
		return nil
	}
	return append(make(S, 0, 2*len(s)), s...)
}
