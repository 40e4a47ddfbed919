package contract

import "strings"

// InvalidateAll is the id whose tombstone ends what an authority said about all devices. No other record has it.
const InvalidateAll = "*"

// InvalidateLabel returns the id whose tombstone ends what an authority said about devices to which it gave a label.
func InvalidateLabel(name, value string) string { return InvalidateAll + name + "=" + value }

// IsInvalidation reports whether a tombstone of id concerns other devices. An authority isn't asked about such an id.
func IsInvalidation(id string) bool { return strings.HasPrefix(id, InvalidateAll) }

// Invalidates reports whether an invalidation concerns a device to which an authority gave these labels.
func Invalidates(id string, labels map[string]string) bool {
	name, value, found := strings.Cut(strings.TrimPrefix(id, InvalidateAll), "=")
	if !found {
		return id == InvalidateAll
	}
	has, found := labels[name]
	return found && has == value
}
