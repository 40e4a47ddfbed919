package mirror

import (
	"slices"

	"github.com/gatehouse/gatehouse/wire"
)

// spellings has, for each canonical key that is stored under another one, too, or only, all keys that it may be
// stored under, its own the first. Our writers store canonical keys only, so it is mostly empty.
type spellings map[string][]string

// Stored is the key in Redis of the object that counts at a canonical key: of those that are there, and no
// tombstones, the one published last. Of two published in one millisecond it is the first in byte order.
func (m *Mirror) Stored(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored(key)
}

func (m *Mirror) stored(key string) string {
	stored, publishedMS, found := key, int64(0), false
	for _, candidate := range m.spellings[key] {
		k, there := m.known[candidate]
		if !there || k.deleted { //mutant:TestSpellings !there
			continue
		}
		if !found ||
			k.publishedMS > publishedMS || //mutant:TestSpellings true
			k.publishedMS == publishedMS && candidate < stored {
			stored, publishedMS, found = candidate, k.publishedMS, true
		}
	}
	return stored
}

// canonical is the key at the edge of what is stored.
func (m *Mirror) canonical(stored string) string {
	if len(m.spellings) == 0 {
		return stored
	}
	return wire.CanonicalKey(stored)
}

// spell notes the stored key, if it isn't canonical, and gives the one that is.
func (m *Mirror) spell(stored string) string {
	key := wire.CanonicalKey(stored)
	if key == stored {
		return stored // rather than a copy
	}
	all := m.spellings[key]
	if all == nil {
		all = []string{key}
	}
	if !slices.Contains(all, stored) {
		m.spellings[key] = append(all, stored)
	}
	return key
}

// unspell drops a stored key that is no longer known.
func (m *Mirror) unspell(stored string) {
	key := m.canonical(stored)
	all := m.spellings[key]
	if all == nil {
		return
	}
	if stored != key {
		all = slices.DeleteFunc(all, func(s string) bool { return s == stored })
	}
	if m.spellings[key] = all; len(all) == 1 {
		delete(m.spellings, key)
	}
	m.updateEdge(key)
}

// updateEdge gives the edge what counts at a canonical key, or takes it away.
func (m *Mirror) updateEdge(key string) {
	stored := m.stored(key)
	if m.known[stored].place == held {
		if entry, found := m.cache.GetEntryQuietly(stored); found {
			m.edge.PutObject(entry.Value)
			return
		}
	}
	m.edge.DeleteObject(key)
}

// reportCollision counts an object that was written while another is stored that is the same key to the edge.
func (m *Mirror) reportCollision(stored, key string) {
	for _, other := range m.spellings[key] {
		if k, there := m.known[other]; other == stored || !there || k.deleted {
			continue
		}
		m.metrics.Collisions.Inc() //mutant:TestSpellings deleted
		counts := m.stored(key)
		m.collisions.Do(func() {
			m.log.Warn("two stored keys are one key to the edge: the later one is served", "key", key, "stored", stored, "other", other, "counts", counts)
		})
		return
	}
}
