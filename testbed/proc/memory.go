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
	return memory(pid, "VmRSS")
}

// PeakRSS returns the largest resident memory that a process ever had, in bytes.
func PeakRSS(pid int) (int64, error) {
	return memory(pid, "VmHWM")
}

// memory returns what proc_pid_status(5) has under name, in bytes.
func memory(pid int, name string) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}
