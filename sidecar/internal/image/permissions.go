package image

import (
	"fmt"
	"math/bits"

	"github.com/gatehouse/gatehouse/wire"
)

// PermissionsError says that there is no bit left for a permission name.
type PermissionsError struct {
	// Name is the one that got none.
	Name string
}

// Error names the permission, the limit and the way out.
func (e *PermissionsError) Error() string {
	return fmt.Sprintf("permission %q would be one more than the %d distinct names that an edge knows: use fewer names, and restart the sidecar to forget those no longer in use",
		e.Name, wire.MaxPermissions)
}

// PermissionNames are the names of a set, in the order of their bits.
func (m *Image) PermissionNames(set uint64) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, bits.OnesCount64(set))
	for i, name := range m.permissions {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Permissions is the set of these names as bits. A name keeps its bit as long as the
// sidecar runs. If there are more names than bits, it is an error and no name gets one.
func (m *Image) Permissions(names []string) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var set uint64
	var added []string
	for _, name := range names {
		bit, found := m.bits[name]
		if !found {
			bit = uint(len(m.permissions) + len(added))
			if bit >= wire.MaxPermissions {
				for _, name := range added {
					delete(m.bits, name)
				}
				return 0, &PermissionsError{name}
			}
			m.bits[name] = bit
			added = append(added, name)
		}
		set |= 1 << bit
	}
	if len(added) > 0 {
		m.permissions = append(m.permissions, added...)
		m.notify()
	}
	return set, nil
}
