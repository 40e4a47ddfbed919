//go:build linux

package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RSS returns the resident memory of a process in bytes.
func RSS(pid int) (int64, error) {
	kib, err := status(fmt.Sprintf("/proc/%d", pid), "VmRSS")
	return kib << 10, err
}

// PeakRSS returns the largest resident memory that a process ever had, in bytes.
func PeakRSS(pid int) (int64, error) {
	kib, err := status(fmt.Sprintf("/proc/%d", pid), "VmHWM")
	return kib << 10, err
}

// Switches counts context switches of a server's serving threads: voluntary ones, because they waited, and involuntary
// ones, because others needed the processor.
func Switches(s Server) (waited, preempted int64, err error) {
	tasks, err := threads(s.PID, s.Workers)
	if err != nil {
		return 0, 0, err
	}
	for _, task := range tasks {
		w, err := status(task, "voluntary_ctxt_switches")
		if err != nil {
			return 0, 0, err
		}
		p, err := status(task, "nonvoluntary_ctxt_switches")
		if err != nil {
			return 0, 0, err
		}
		waited, preempted = waited+w, preempted+p
	}
	return waited, preempted, nil
}

// status returns the number that proc_pid_status(5) has under name.
func status(dir, name string) (int64, error) {
	text, err := os.ReadFile(dir + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s/status has no %s", dir, name)
}
