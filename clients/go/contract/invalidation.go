package contract

import "strings"

// InvalidateAll is the id of the tombstone that ends an authority's verdicts on all devices. No record has this id.
const InvalidateAll = "*"

// InvalidateLabel returns the id of the tombstone that ends an authority's verdicts on devices with a label from the
// authority.
func InvalidateLabel(name, value string) string { return InvalidateAll + name + "=" + value }

// IsInvalidation reports whether id is an invalidation's, not a device's. An authority is never asked about an
// invalidation's id.
func IsInvalidation(id string) bool { return strings.HasPrefix(id, InvalidateAll) }

// Invalidates reports whether an invalidation concerns a device with labels from an authority.
func Invalidates(id string, labels map[string]string) bool {
	name, value, found := strings.Cut(strings.TrimPrefix(id, InvalidateAll), "=")
	if !found {
		return id == InvalidateAll
	}
	has, found := labels[name]
	return found && has == value
}
