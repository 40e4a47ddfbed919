//go:build linux

package proc

import (
	"fmt"
	"slices"
)

// saturated is the share of its cores that makes a process count as busy.
const saturated = 0.95

// Load is the input of FindBottleneck.
type Load struct {
	// Client is the client's share, 0 to 1, of the cores that the client can use.
	Client float64
	// Servers is the same share of each server.
	Servers map[string]float64
	// Machine is the busy share of all cores. Others is the number of cores used by programs outside the measurement.
	Machine, Others float64
	// Locked is the share of time in which serving threads waited for other threads.
	Locked float64
	// Lost is the number of retransmitted segments and refused connections per request.
	Lost float64
	// Held is set if requests were sent, and answered, at a fixed rate.
	Held bool
}

// ClientBound reports whether the client limited the rate: the client was saturated, and no server was.
func (l Load) ClientBound() bool {
	if l.Held || l.Client < saturated {
		return false
	}
	for _, busy := range l.Servers {
		if busy >= saturated {
			return false
		}
	}
	return true
}

// FindBottleneck names the limit of the rate.
func (l Load) FindBottleneck() string {
	switch {
	case l.Held:
		return "none: rate held"
	case l.ClientBound():
		return "client"
	}
	names := make([]string, 0, len(l.Servers))
	for name := range l.Servers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if l.Servers[name] >= saturated {
			return name + " core"
		}
	}
	switch {
	case l.Machine >= saturated && l.Others >= 0.1:
		return fmt.Sprintf("machine (others: %.1f cores)", l.Others)
	case l.Lost > 0.001:
		return "network"
	case l.Locked >= 0.2:
		return fmt.Sprintf("lock (%.0f %% of samples)", 100*l.Locked)
	case l.Machine >= saturated:
		return "machine: client and servers share its cores"
	}
	return "waiting: nothing is busy"
}
