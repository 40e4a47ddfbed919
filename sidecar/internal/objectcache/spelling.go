package objectcache

import (
	"slices"

	"github.com/gatehouse/gatehouse/edge/wire/objectkey"
)

// spellings has, for each canonical key with a stored key in another spelling, all spellings, the canonical one first.
// Our writers store canonical keys only, so it is mostly empty.
type spellings map[string][]string

// Stored returns the stored key of the object that the edge serves for a canonical key: of all spellings that are not
// tombstones, the one published last, and of two published in one millisecond, the first in bytewise order.
func (c *Cache) Stored(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored(key)
}

func (c *Cache) stored(key string) string {
	stored, publishedMS, found := key, int64(0), false
	for _, candidate := range c.spellings[key] {
		k, there := c.known[candidate]
		if !there || k.deleted {
			continue
		}
		if !found || k.publishedMS > publishedMS || k.publishedMS == publishedMS && candidate < stored {
			stored, publishedMS, found = candidate, k.publishedMS, true
		}
	}
	return stored
}

// canonical returns the key of a stored object at the edge.
func (c *Cache) canonical(stored string) string {
	if len(c.spellings) == 0 {
		return stored
	}
	return objectkey.Canonical(stored)
}

// spell returns the canonical key of a stored one, and adds the stored one to spellings if it differs.
func (c *Cache) spell(stored string) string {
	key := objectkey.Canonical(stored)
	if key == stored {
		return stored // not a copy
	}
	all := c.spellings[key]
	if all == nil {
		all = []string{key}
	}
	if !slices.Contains(all, stored) {
		c.spellings[key] = append(all, stored)
	}
	return key
}

// unspell removes a stored key that is no longer known.
func (c *Cache) unspell(stored string) {
	key := c.canonical(stored)
	all := c.spellings[key]
	if all == nil {
		return
	}
	if stored != key {
		all = slices.DeleteFunc(all, func(s string) bool { return s == stored })
	}
	if c.spellings[key] = all; len(all) == 1 {
		delete(c.spellings, key)
	}
	c.updateEdge(key)
}

// updateEdge puts the current object of a canonical key to the edge, or deletes it there.
func (c *Cache) updateEdge(key string) {
	stored := c.stored(key)
	if c.known[stored].place == held {
		if entry, found := c.cache.GetEntryQuietly(stored); found {
			c.edge.PutObject(entry.Value)
			return
		}
	}
	c.edge.DeleteObject(key)
}

// reportCollision counts and logs a write of an object while another spelling of its key is stored.
func (c *Cache) reportCollision(stored, key string) {
	for _, other := range c.spellings[key] {
		if k, there := c.known[other]; other == stored || !there || k.deleted {
			continue
		}
		c.metrics.Collisions.Inc()
		counts := c.stored(key)
		c.collisions.Do(func() {
			c.log.Warn("two stored keys are the same key at the edge: the one published later is served",
				"key", key, "stored", stored, "other", other, "counts", counts)
		})
		return
	}
}
