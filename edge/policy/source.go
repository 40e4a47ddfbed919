package policy

import (
	"net/netip"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// CanonicalAddress parses text as an IP address, with or without a port, and returns the canonical form, for the
// comparison of sources; "" for an invalid address.
func CanonicalAddress(text string) string {
	text = strings.Trim(text, " \t")
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return formatAddress(ap.Addr())
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return formatAddress(a)
	}
	return ""
}

func formatAddress(a netip.Addr) string { return a.WithZone("").Unmap().String() }

// HeaderAddress returns the last address in a header, which the nearest proxy has added. Clients may have sent the
// addresses before.
func HeaderAddress(headers []byte, name string) string {
	fields, _ := headermap.ParseFields(headers)
	last := ""
	for fields.HasMore() {
		if n, value := fields.Next(); n == name {
			last = value
		}
	}
	return CanonicalAddress(last[strings.LastIndexByte(last, ',')+1:])
}
