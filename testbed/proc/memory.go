//go:build linux

package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RSS returns the resident memory of a process in bytes.
func RSS(pid int) (int64, error) { return readMemory(pid, "status", "VmRSS") }

// PeakRSS returns the largest resident memory of a process so far, in bytes.
func PeakRSS(pid int) (int64, error) { return readMemory(pid, "status", "VmHWM") }

// PSS returns the resident memory of a process in bytes, each page divided by the number of processes with the page.
func PSS(pid int) (int64, error) { return readMemory(pid, "smaps_rollup", "Pss") }

// readMemory returns the value of name in a file of proc(5), in bytes.
func readMemory(pid int, file, name string) (int64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
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
