package image

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// renewEvery is how often an epoch is begun for the sake of permission names, at most.
const renewEvery = 10 * time.Second

// permissions are the names that have a bit. Within an epoch a bit has one name, and new names come
// behind all that there are: so whoever reads a verdict by the state that he knows finds the
// right names in it, or one more than he knows of. A bit that no record has any more gets
// another name only with another epoch, of which no verdict of before is believed.
type permissions struct {
	names   []string // by bit; "": was given up in an earlier epoch
	bits    map[string]uint
	uses    [wire.MaxPermissions]int // by how many records
	wanted  []string                 // names that get the bits of others with the next epoch
	renewed time.Time                // when some did last
}

// PermissionsError says that there is no bit for a permission name.
type PermissionsError struct {
	// Name is the one that got none.
	Name string
	// Soon says that it will have one with the next epoch, which has been asked for.
	Soon bool
}

// Error names the permission, the limit and the way out.
func (e *PermissionsError) Error() string {
	if e.Soon {
		return fmt.Sprintf("permission %q has no bit yet: it gets that of a name that no device has any more", e.Name)
	}
	return fmt.Sprintf("permission %q would be one more than the %d distinct names that devices can have: use fewer names",
		e.Name, wire.MaxPermissions)
}

// Later reports whether it is worth asking again soon.
func (e *PermissionsError) Later() bool { return e.Soon }

// PermissionNames are the names of a set, in the order of their bits.
func (m *Memory) PermissionNames(set uint64) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, bits.OnesCount64(set))
	for i, name := range m.permissions.names {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Permissions is the set of these names as bits, which they keep until [Memory.ReleasePermissions] was called
// for each time that they were asked for. If there are more names than bits, it is an error
// and no name gets one.
func (m *Memory) Permissions(names []string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.permissions
	var set uint64
	var added []string
	for _, name := range names {
		if bit, found := p.bits[name]; found {
			set |= 1 << bit
		} else if !slices.Contains(added, name) {
			added = append(added, name)
		}
	}
	if room := wire.MaxPermissions - len(p.names); len(added) > room {
		err := &PermissionsError{Name: added[room], Soon: len(added) <= wire.MaxPermissions-p.used(set)}
		if err.Soon {
			p.want(added)
		}
		return 0, err
	}
	for _, name := range added {
		set |= 1 << p.add(name)
	}
	for bit := range p.uses {
		p.uses[bit] += int(set >> bit & 1)
	}
	if len(added) > 0 {
		m.notify()
	}
	return set, nil
}

// ReleasePermissions says that a record that had the set is gone, and so are its verdicts.
func (m *Memory) ReleasePermissions(set uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for bit := range m.permissions.uses {
		m.permissions.uses[bit] -= int(set >> bit & 1)
	}
}

// used is how many bits are used, or are in the set.
func (p *permissions) used(set uint64) (n int) {
	for bit := range p.names {
		if p.uses[bit] > 0 || set>>bit&1 != 0 {
			n++
		}
	}
	return n
}

// want asks for bits with the next epoch.
func (p *permissions) want(names []string) {
	for _, name := range names {
		if len(p.wanted) < wire.MaxPermissions && !slices.Contains(p.wanted, name) {
			p.wanted = append(p.wanted, name)
		}
	}
}

func (p *permissions) add(name string) uint {
	bit := uint(len(p.names))
	p.names, p.bits[name] = append(p.names, name), bit
	return bit
}

// renew begins an epoch: bits that nobody uses get names that are wanted, or none.
func (p *permissions) renew(now time.Time) {
	for bit, name := range p.names {
		if p.uses[bit] > 0 { //mutant:TestPermissionIsUsedAgain false
			continue
		}
		delete(p.bits, name)
		p.names[bit] = ""
	}
	for len(p.names) > 0 && p.names[len(p.names)-1] == "" {
		p.names = p.names[:len(p.names)-1]
	}
	for _, name := range p.wanted {
		if _, found := p.bits[name]; found {
			continue
		}
		if hole := slices.Index(p.names, ""); hole >= 0 {
			p.names[hole], p.bits[name] = name, uint(hole)
		} else if len(p.names) < wire.MaxPermissions {
			p.add(name)
		}
	}
	if len(p.wanted) > 0 {
		p.wanted, p.renewed = nil, now
	}
}

// due reports whether another epoch is worth beginning.
func (p *permissions) due(now time.Time) bool {
	return len(p.wanted) > 0 && now.Sub(p.renewed) >= renewEvery
}
