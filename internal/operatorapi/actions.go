package operatorapi

import (
	"log/slog"
	"net/netip"
	"time"
)

// LogLevel sets the lowest logged level, until the sidecar ends.
type LogLevel struct {
	Level slog.Level `json:"level"`
}

// Release asks to forget the failures of a network, or of a device in the network.
type Release struct {
	Network string `json:"network"` // or an address in it
	Device  string `json:"device,omitempty"`
}

// Released tells how many holds were forgotten.
type Released struct {
	Released int `json:"released"`
}

// Resyncing confirms that a resync has begun.
type Resyncing struct {
	Resyncing bool `json:"resyncing"`
}

// Hold is a network, or a device at a network, that the limits hold back.
type Hold struct {
	// Network is an IPv4 address or an IPv6 /64.
	Network netip.Prefix `json:"network"`
	// Device is the device that is held back at the network; "": all devices that never authenticated from the network.
	Device string    `json:"device,omitempty"`
	Last   time.Time `json:"last_failure"`
	// WaitS is how long the next attempt must wait, s; 0: not at all, but the attempt goes last (see --limit.window).
	WaitS float64 `json:"wait_s"`
	// Own: the device authenticated from the network before, so the right secret passes, and only other secrets wait.
	Own bool `json:"own,omitempty"`
}
