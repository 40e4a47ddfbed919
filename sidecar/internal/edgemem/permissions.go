package edgemem

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// renewEvery is the minimum interval between new epochs for permission names.
const renewEvery = 10 * time.Second

// permissions assigns bits to permission names. Within an epoch each bit keeps its name, and new names get higher bits.
// So a reader with an older state finds the right names of a verdict's bits, or a bit that it doesn't know. A bit that
// no record uses any more gets another name only in a new epoch, in which verdicts of earlier ones are invalid.
type permissions struct {
	names   []string // by bit; "": released in an earlier epoch
	bits    map[string]uint
	uses    [limits.MaxPermissions]int // number of records with the bit
	wanted  []string                   // names that get released bits in the next epoch
	renewed time.Time                  // when wanted names last got bits
}

// PermissionsError means that there is no bit for a permission name.
type PermissionsError struct {
	// Name is the name without a bit.
	Name string
	// Soon means that the name gets a bit in the next epoch, which was requested.
	Soon bool
}

// Error names the permission, the limit and the fix.
func (e *PermissionsError) Error() string {
	if e.Soon {
		return fmt.Sprintf("permission %q has no bit yet: it gets one whose name no device has any more", e.Name)
	}
	return fmt.Sprintf("permission %q would be one more than the %d distinct names that devices can have: use fewer names",
		e.Name, limits.MaxPermissions)
}

// Later reports whether a retry soon may succeed.
func (e *PermissionsError) Later() bool { return e.Soon }

// PermissionNames returns the names of a set, in the order of their bits.
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

// Permissions returns the bits of names. A bit keeps its name until [Memory.ReleasePermissions] was called once for
// each call of Permissions. If there are more names than bits, it returns an error and assigns none.
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
	if room := limits.MaxPermissions - len(p.names); len(added) > room {
		err := &PermissionsError{Name: added[room], Soon: len(added) <= limits.MaxPermissions-p.used(set)}
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

// ReleasePermissions releases the bits of a record after the record and its verdicts were removed.
func (m *Memory) ReleasePermissions(set uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for bit := range m.permissions.uses {
		m.permissions.uses[bit] -= int(set >> bit & 1)
	}
}

// used returns the number of bits that are used or in set.
func (p *permissions) used(set uint64) (n int) {
	for bit := range p.names {
		if p.uses[bit] > 0 || set>>bit&1 != 0 {
			n++
		}
	}
	return n
}

// want requests bits in the next epoch.
func (p *permissions) want(names []string) {
	for _, name := range names {
		if len(p.wanted) < limits.MaxPermissions && !slices.Contains(p.wanted, name) {
			p.wanted = append(p.wanted, name)
		}
	}
}

func (p *permissions) add(name string) uint {
	bit := uint(len(p.names))
	p.names, p.bits[name] = append(p.names, name), bit
	return bit
}

// renew begins an epoch: wanted names get the bits that no record uses.
func (p *permissions) renew(now time.Time) {
	for bit, name := range p.names {
		if p.uses[bit] > 0 {
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
		} else if len(p.names) < limits.MaxPermissions {
			p.add(name)
		}
	}
	if len(p.wanted) > 0 {
		p.wanted, p.renewed = nil, now
	}
}

// due reports whether to begin another epoch.
func (p *permissions) due(now time.Time) bool {
	return len(p.wanted) > 0 && now.Sub(p.renewed) >= renewEvery
}
