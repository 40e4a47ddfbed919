package objectcache

// Description is the sidecar's knowledge about a key.
type Description struct {
	Version     uint64 // 0: none is known
	PublishedMS int64
	// Place is "held", "left_out" (no room in the budget), "deleted", "purged", "expired" or "unknown".
	Place string
	// Stale: it was purged softly.
	Stale bool
}

// Describe returns the sidecar's knowledge about a key.
func (c *Cache) Describe(key string) Description {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := Description{Place: "unknown"}
	k, found := c.newest[key]
	if !found {
		return d
	}
	d.Version, d.PublishedMS, d.Stale = k.version, k.publishedMS, k.stale
	switch {
	case k.deleted:
		d.Place = "deleted"
	case k.purged:
		d.Place = "purged"
	case k.location == held:
		d.Place = "held"
	case k.location == leftOut:
		d.Place = "left_out"
	default:
		d.Place = "expired"
	}
	return d
}
