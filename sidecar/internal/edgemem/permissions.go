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
// So a reader with an older state finds the right names of a verdict's bits, or an unknown bit. A bit that no record
// uses any more gets another name only in a new epoch, in which verdicts of earlier epochs are invalid.
type permissions struct {
	names     []string // by bit; "": released in an earlier epoch
	bits      map[string]uint
	uses      [limits.MaxPermissions]int // number of records with the bit
	requested []string                   // names that get released bits in the next epoch
	renewed   time.Time                  // when requested names last got bits
}

// PermissionsError reports a permission name without a bit.
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
// each call of Permissions. If names outnumber bits, Permissions returns an error and assigns no bit.
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
		err := &PermissionsError{Name: added[room], Soon: len(added) <= limits.MaxPermissions-p.countUsed(set)}
		if err.Soon {
			p.requestBits(added)
		}
		return 0, err
	}
	for _, name := range added {
		set |= 1 << p.assignBit(name)
	}
	for bit := range p.uses {
		p.uses[bit] += int(set >> bit & 1)
	}
	if len(added) > 0 {
		m.wakePusher()
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

// countUsed returns the number of bits that are used or in set.
func (p *permissions) countUsed(set uint64) (n int) {
	for bit := range p.names {
		if p.uses[bit] > 0 || set>>bit&1 != 0 {
			n++
		}
	}
	return n
}

// requestBits requests bits in the next epoch.
func (p *permissions) requestBits(names []string) {
	for _, name := range names {
		if len(p.requested) < limits.MaxPermissions && !slices.Contains(p.requested, name) {
			p.requested = append(p.requested, name)
		}
	}
}

func (p *permissions) assignBit(name string) uint {
	bit := uint(len(p.names))
	p.names, p.bits[name] = append(p.names, name), bit
	return bit
}

// reassignBits begins an epoch: requested names get the bits that no record uses.
func (p *permissions) reassignBits(now time.Time) {
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
	for _, name := range p.requested {
		if _, found := p.bits[name]; found {
			continue
		}
		if hole := slices.Index(p.names, ""); hole >= 0 {
			p.names[hole], p.bits[name] = name, uint(hole)
		} else if len(p.names) < limits.MaxPermissions {
			p.assignBit(name)
		}
	}
	if len(p.requested) > 0 {
		p.requested, p.renewed = nil, now
	}
}

// isRenewalDue reports whether requested names need a new epoch now.
func (p *permissions) isRenewalDue(now time.Time) bool {
	return len(p.requested) > 0 && now.Sub(p.renewed) >= renewEvery
}
