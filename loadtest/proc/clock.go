//go:build linux

package proc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the CPU time of some servers to the nanosecond, where [Read] counts ticks. It knows
// those processes that there were when it was made.
type Clock struct {
	names []string // of the server of each
	pids  []int
}

// NewClock is a clock of servers and all processes that descend from them.
func NewClock(servers []Server) (Clock, error) {
	var c Clock
	children, err := childrenOf()
	if err != nil {
		return c, err
	}
	for _, s := range servers {
		for pids := []int{s.PID}; len(pids) > 0; pids = append(pids[1:], children[pids[0]]...) {
			c.names, c.pids = append(c.names, s.Name), append(c.pids, pids[0])
		}
	}
	return c, nil
}

// Read is what its processes have used so far.
func (c Clock) Read() (sum time.Duration, err error) {
	for i, pid := range c.pids {
		var t unix.Timespec
		// clock_getcpuclockid(3): Linux makes the id of a process's clock of its pid.
		if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
			return 0, fmt.Errorf("CPU clock of %s, process %d: %w", c.names[i], pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}
