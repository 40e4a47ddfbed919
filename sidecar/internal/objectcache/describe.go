package objectcache

// Description is what the sidecar knows about a key.
type Description struct {
	Version     uint64 `json:"version"` // 0: none is known
	PublishedMS int64  `json:"published_ms"`
	// Place is "held", "left_out" (no room in the budget), "deleted", "expired" or "unknown".
	Place string `json:"place"`
}

// Describe returns what is known about a key.
func (c *Cache) Describe(key string) Description {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := Description{Place: "unknown"}
	k, found := c.newest[key]
	if !found {
		return d
	}
	d.Version, d.PublishedMS = k.version, k.publishedMS
	switch {
	case k.deleted:
		d.Place = "deleted"
	case k.place == held:
		d.Place = "held"
	case k.place == leftOut:
		d.Place = "left_out"
	default:
		d.Place = "expired"
	}
	return d
}
