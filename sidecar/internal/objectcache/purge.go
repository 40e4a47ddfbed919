package objectcache

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// shardPurges has the purges of a shard.
type shardPurges struct {
	all contract.Purges
	// unmet are the purges that the running full resync has not applied. Until [Purges.EndResync], unmet purges still
	// count: an object read meanwhile must not bring back purged content.
	unmet map[string]bool
	// isLoaded: all purges were read once. Until then nobody knows whether an object was purged.
	isLoaded bool
	// backgroundRemovals is the number of purges whose objects are being removed in the background.
	backgroundRemovals int
	// tagged has the keys of held and left-out objects, by the IDs of the purges of their tags.
	tagged map[string]keySet
}

// keySet is a set of keys; most tags have a single key.
type keySet struct {
	single string // "": none
	more   map[string]struct{}
}

func (s keySet) addKey(key string) keySet {
	switch {
	case s.single == "":
		s.single = key
	case s.single != key:
		if s.more == nil {
			s.more = map[string]struct{}{}
		}
		s.more[key] = struct{}{}
	}
	return s
}

func (s keySet) removeKey(key string) keySet {
	if s.single != key {
		delete(s.more, key)
		return s
	}
	s.single = ""
	for s.single = range s.more {
		delete(s.more, s.single)
		break
	}
	return s
}

func (s keySet) keys() []string {
	if s.single == "" {
		return nil
	}
	return slices.AppendSeq([]string{s.single}, maps.Keys(s.more))
}

// chunkSize is the number of objects removed from the edge under one hold of the lock, about a batch. Between chunks
// other goroutines get the lock: a large purge takes long, and the edge must learn of the purge in the other shards,
// too.
const chunkSize = 512

// maxRemovals is the maximum number of purges in a shard whose objects are removed in the background at once.
const maxRemovals = 8

// Purges is the cache's view for the purges of a shard.
type Purges struct{ Shard }

// Purges returns the cache for the purges of shard i.
func (c *Cache) Purges(i int) Purges { return Purges{Shard{c, i}} }

// Apply applies p, if p is newer than the known purge with the same ID. The edge drops the purge's objects at once. If
// the edge finds none of many objects from the next batch on, Apply removes them after returning: a later revocation
// must not wait.
func (s Purges) Apply(p contract.Purge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &s.purges[s.shard]
	known, found := of.all[p.ID]
	if found && !of.unmet[p.ID] && (p.Version < known.Version ||
		p.Version == known.Version && p.PublishedMS <= known.PublishedMS) {
		return
	}
	delete(of.unmet, p.ID)
	if p.Deleted {
		delete(of.all, p.ID)
		return
	}
	of.all[p.ID] = p
	if p.Hard <= known.Hard && p.Soft <= max(known.Hard, known.Soft) {
		return // already applied
	}
	var end func()
	virtualHost, prefix, tag := contract.SplitPurge(p.ID)
	keys := of.tagged[p.ID].keys()
	if tag == "" || len(keys) > chunkSize {
		end = s.edge.BeginPurge(s.shard, p.ID, p.Hard <= known.Hard)
	}
	if tag == "" {
		keys = s.keysUnder(virtualHost, prefix)
	}
	if end == nil || len(keys) <= chunkSize || of.backgroundRemovals == maxRemovals {
		s.purgeInChunks(keys, end)
		return
	}
	of.backgroundRemovals++
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.purgeInChunks(keys, end)
		of.backgroundRemovals--
	}()
}

// purgeInChunks purges the objects at keys, and then calls end, unless nil. Between chunks the lock is free.
func (s Purges) purgeInChunks(keys []string, end func()) {
	for some := range slices.Chunk(keys, chunkSize) {
		s.yieldLock()
		s.purgeKeys(some)
	}
	if end != nil {
		end()
	}
}

// yieldLock releases the caller's lock for a moment. From the first call on, objects applied by other goroutines are
// judged by the purge.
func (s Purges) yieldLock() {
	s.mu.Unlock()
	runtime.Gosched() // also to the pusher
	s.mu.Lock()
}

// keysUnder returns the keys of held and left-out objects of a virtual host whose paths begin with prefix. Meanwhile
// other goroutines may add and remove keys, and replace the map.
func (s Purges) keysUnder(virtualHost, prefix string) (keys []string) {
	n := 0
	for key, k := range s.newest {
		if n++; n%(8*chunkSize) == 0 {
			s.yieldLock()
		}
		if int(k.shard) != s.shard || k.location == nowhere {
			continue
		}
		if of, target := objectkey.VirtualHost(key); of == virtualHost && strings.HasPrefix(target, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// purgeKeys judges the objects at keys, which may have changed, and removes purged objects and marks stale ones.
func (s Purges) purgeKeys(keys []string) {
	var gone []string
	for _, key := range keys {
		k := s.newest[key]
		if k.location == nowhere {
			continue
		}
		purged, stale := s.checkPurged(key, k)
		switch {
		case purged:
			k.purged = true
			s.newest[key] = k
			gone = append(gone, key)
		case stale && !k.stale:
			k.stale = true
			s.newest[key] = k
			if k.location == held {
				s.edge.MarkStale(key)
			}
			s.metrics.Purged.WithLabelValues("soft").Inc()
		}
	}
	s.edge.DeleteObjects(gone) // it is pushed while the rest follows
	for _, key := range gone {
		if s.newest[key].location == held {
			s.cache.Invalidate(key)
		}
		s.setLocation(key, nowhere)
	}
	s.metrics.Purged.WithLabelValues("hard").Add(float64(len(gone)))
	s.reportMetrics()
}

// checkPurged returns whether k, the newest version at key, was purged after it was written, or purged softly.
func (c *Cache) checkPurged(key string, k newestVersion) (purged, stale bool) {
	var tags []string
	if k.tags != nil {
		tags = *k.tags
	}
	return c.purges[k.shard].all.Of(key, tags, k.seq)
}

// BeginResync begins a full resync of the shard's purges, which [Purges.EndResync] ends before objects are read.
func (s Purges) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &s.purges[s.shard]
	of.unmet = make(map[string]bool, len(of.all))
	for id := range of.all {
		of.unmet[id] = true
	}
}

// Unapplied returns the IDs of the purges that the resync has not applied yet.
func (s Purges) Unapplied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.purges[s.shard].unmet))
}

// EndResync forgets the purges that the resync has not applied.
func (s Purges) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &s.purges[s.shard]
	for id := range of.unmet {
		delete(of.all, id)
	}
	of.unmet, of.isLoaded = nil, true
}

// updateTagIndex adds the object at key to the sets of its newest version's tags, or removes it.
func (c *Cache) updateTagIndex(key string, add bool) {
	k := c.newest[key]
	if k.tags == nil {
		return
	}
	tagged := c.purges[k.shard].tagged
	contract.VisitPurges(key, *k.tags, func(id []byte) bool {
		if !bytes.Contains(id, []byte("#")) {
			return false // the tags come first
		}
		set := tagged[string(id)]
		if add {
			set = set.addKey(key)
		} else {
			set = set.removeKey(key)
		}
		if set.single == "" {
			delete(tagged, string(id))
		} else {
			tagged[string(id)] = set
		}
		return true
	})
}
