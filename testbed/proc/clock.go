//go:build linux

package proc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock measures the CPU time of servers in nanoseconds; [ReadUsage] counts ticks. A clock includes the processes that
// existed when the clock was made.
type Clock struct {
	names []string // server of each process
	pids  []int
	last  []time.Duration // of each process, at the last reading
}

// NewClock returns a clock of servers and all their descendants.
func NewClock(servers []Server) (Clock, error) {
	var c Clock
	children, err := childrenOf()
	if err != nil {
		return c, err
	}
	for _, s := range servers {
		for pids := []int{s.PID}; len(pids) > 0; pids = append(pids[1:], children[pids[0]]...) {
			c.names, c.pids, c.last = append(c.names, s.Name), append(c.pids, pids[0]), append(c.last, -1)
		}
	}
	return c, nil
}

// Read returns the CPU time used by the processes so far. The last reading counts for an ended process, for example
// nginx's cache loader, which ends after a minute.
func (c Clock) Read() (sum time.Duration, err error) {
	for i, pid := range c.pids {
		var t unix.Timespec
		// clock_getcpuclockid(3): Linux derives the id of a process's clock from the pid.
		err := unix.ClockGettime(int32(^pid<<3|2), &t)
		if err == nil {
			c.last[i] = time.Duration(t.Nano())
		} else if err != unix.EINVAL || c.last[i] < 0 {
			return 0, fmt.Errorf("CPU clock of %s, process %d: %w", c.names[i], pid, err)
		}
		sum += c.last[i]
	}
	return sum, nil
}
