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

// purges has the purges of one shard.
type purges struct {
	all contract.Purges
	// unmet are those that the running full resync has not applied. Until its [Purges.EndResync] they still count: what
	// is read meanwhile must not bring back what was purged.
	unmet map[string]bool
	// read: all were read once. Until then nobody knows whether an object was purged.
	read bool
	// removals is the number of purges whose objects are removed in the background.
	removals int
	// tagged has the keys of held and left-out objects, by the IDs of the purges of their tags.
	tagged map[string]keySet
}

// keySet is a set of keys; most tags have one.
type keySet struct {
	one  string // "": none
	more map[string]struct{}
}

func (s keySet) add(key string) keySet {
	switch {
	case s.one == "":
		s.one = key
	case s.one != key:
		if s.more == nil {
			s.more = map[string]struct{}{}
		}
		s.more[key] = struct{}{}
	}
	return s
}

func (s keySet) remove(key string) keySet {
	if s.one != key {
		delete(s.more, key)
		return s
	}
	s.one = ""
	for s.one = range s.more {
		delete(s.more, s.one)
		break
	}
	return s
}

func (s keySet) keys() []string {
	if s.one == "" {
		return nil
	}
	return slices.AppendSeq([]string{s.one}, maps.Keys(s.more))
}

// atOnce is the number of objects that are removed from the edge at once: about a batch. In between others get the
// lock: a purge of many takes long, and the edge must learn of it in the other shards, too.
const atOnce = 512

// maxRemovals is the maximum number of purges in a shard whose objects are removed in the background at once.
const maxRemovals = 8

// Purges is the cache for the purges of one shard.
type Purges struct{ Shard }

// Purges returns the cache for the purges of shard i.
func (c *Cache) Purges(i int) Purges { return Purges{Shard{c, i}} }

// Apply applies p, if it is newer than the known purge of its ID. The edge lets go at once of the objects that it
// concerns. Many objects are removed after Apply has returned, if the edge finds none of them from the next batch on: a
// revocation that follows must not wait.
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
		return // it is applied
	}
	var end func()
	virtualHost, prefix, tag := contract.SplitPurge(p.ID)
	keys := of.tagged[p.ID].keys()
	if tag == "" || len(keys) > atOnce {
		end = s.edge.BeginPurge(s.shard, p.ID, p.Hard <= known.Hard)
	}
	if tag == "" {
		keys = s.under(virtualHost, prefix)
	}
	if end == nil || len(keys) <= atOnce || of.removals == maxRemovals {
		s.purgeInTurn(keys, end)
		return
	}
	of.removals++
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.purgeInTurn(keys, end)
		of.removals--
	}()
}

// purgeInTurn purges the objects at keys, and then calls end, unless nil. It lets others have the lock in between.
func (s Purges) purgeInTurn(keys []string, end func()) {
	for some := range slices.Chunk(keys, atOnce) {
		s.letOthers()
		s.purge(some)
	}
	if end != nil {
		end()
	}
}

// letOthers lets others have the lock that the caller has. From the first call on, objects that they apply are judged
// by the purge.
func (s Purges) letOthers() {
	s.mu.Unlock()
	runtime.Gosched() // also to the pusher
	s.mu.Lock()
}

// under returns the keys of held and left-out objects of a virtual host whose paths begin with prefix. Others may add
// and remove keys meanwhile, and replace the map.
func (s Purges) under(virtualHost, prefix string) (keys []string) {
	n := 0
	for key, k := range s.newest {
		if n++; n%(8*atOnce) == 0 {
			s.letOthers()
		}
		if int(k.shard) != s.shard || k.place == nowhere {
			continue
		}
		if of, target := objectkey.VirtualHost(key); of == virtualHost && strings.HasPrefix(target, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// purge judges the objects at keys, which may have changed, and removes them or marks them.
func (s Purges) purge(keys []string) {
	var gone []string
	for _, key := range keys {
		k := s.newest[key]
		if k.place == nowhere {
			continue
		}
		purged, stale := s.judge(key, k)
		switch {
		case purged:
			k.purged = true
			s.newest[key] = k
			gone = append(gone, key)
		case stale && !k.stale:
			k.stale = true
			s.newest[key] = k
			if k.place == held {
				s.edge.MarkStale(key)
			}
			s.metrics.Purged.WithLabelValues("soft").Inc()
		}
	}
	s.edge.DeleteObjects(gone) // it is pushed while the rest follows
	for _, key := range gone {
		if s.newest[key].place == held {
			s.cache.Invalidate(key)
		}
		s.put(key, nowhere)
	}
	s.metrics.Purged.WithLabelValues("hard").Add(float64(len(gone)))
	s.report()
}

// judge returns whether k, the newest version at key, was purged after it was written, or purged softly.
func (c *Cache) judge(key string, k newest) (purged, stale bool) {
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
	of.unmet, of.read = nil, true
}

// index adds the object at key to those with its tags, or removes it. The newest version of the key has them.
func (c *Cache) index(key string, add bool) {
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
			set = set.add(key)
		} else {
			set = set.remove(key)
		}
		if set.one == "" {
			delete(tagged, string(id))
		} else {
			tagged[string(id)] = set
		}
		return true
	})
}
