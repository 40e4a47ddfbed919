package policy

import (
	"net/netip"
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// Address parses text as an IP address, with or without a port, and returns its canonical form, for the comparison of
// sources; "" if it is invalid.
func Address(text string) string {
	text = strings.Trim(text, " \t")
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return canonical(ap.Addr())
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return canonical(a)
	}
	return ""
}

func canonical(a netip.Addr) string { return a.WithZone("").Unmap().String() }

// AddressIn returns the address in a header, the last one of several, which the nearest proxy has added. Clients may
// have sent the others.
func AddressIn(headers []byte, name string) string {
	fields, _ := headermap.ParseFields(headers)
	last := ""
	for fields.More() {
		if n, value := fields.Next(); n == name {
			last = value
		}
	}
	return Address(last[strings.LastIndexByte(last, ',')+1:])
}
