package credential

import (
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/internal/shrink"
)

// maxStale is the number of obsolete tombstones, in addition to as many as valid tombstones, that are kept.
const maxStale = 1000

// records has the record of each device. [Devices]' lock guards it.
type records struct {
	all        map[string]*record
	size       shrink.Map[string, *record] // of all
	live       int                         // number of records, without tombstones
	tombstones []tombstone                 // in the order of their arrival
}

// tombstone is a record that may still be its device's current record.
type tombstone struct {
	id     string
	record *record
}

// put stores r, nil for none, as the device's record.
func (t *records) put(id string, r *record) {
	if before := t.all[id]; before != nil && !before.tombstone {
		t.live--
	}
	if r == nil {
		delete(t.all, id)
		return
	}
	t.all[id] = r
	t.size.Add(t.all)
	if !r.tombstone {
		t.live++
		return
	}
	t.tombstones = append(t.tombstones, tombstone{id, r})
	// A device that is deleted again and again has a single valid tombstone.
	if count := len(t.all) - t.live; len(t.tombstones) > 2*count+maxStale {
		t.tombstones = shrink.Slice(slices.DeleteFunc(t.tombstones, t.isObsolete))
	}
}

func (t *records) isObsolete(s tombstone) bool { return t.all[s.id] != s.record }

// takeExpired returns the devices whose tombstones have expired in Redis. Its caller removes their records: otherwise
// ids that never return would stay for ever.
func (t *records) takeExpired(now time.Time) (ids []string) {
	for len(t.tombstones) > 0 {
		first := t.tombstones[0]
		if !t.isObsolete(first) {
			if !first.record.mayBeExpired(now) {
				return ids
			}
			ids = append(ids, first.id)
		}
		t.tombstones[0] = tombstone{} // the array outlives the element
		if t.tombstones = t.tombstones[1:]; len(t.tombstones) == 0 {
			t.tombstones = nil
		}
	}
	return ids
}

// fit gives the memory of removed records back.
func (t *records) fit() { t.all = t.size.Fit(t.all) }
