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
	return readStatus(pid, "VmRSS")
}

// PeakRSS returns the largest resident memory of a process so far, in bytes.
func PeakRSS(pid int) (int64, error) {
	return readStatus(pid, "VmHWM")
}

// readStatus returns the value of name in proc_pid_status(5), in bytes.
func readStatus(pid int, name string) (int64, error) {
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

// Mapping is a part of a process's memory.
type Mapping struct {
	Start, End uint64 // addresses
	// Name is the file's path, or the kernel's name: [heap], [stack]; empty for other anonymous memory.
	Name string
	// PSS is the resident memory in bytes, each page divided by the number of processes with the page. Private is the
	// resident memory of this process alone.
	PSS, Private int64
}

// ReadMappings returns the memory of a process (proc_pid_smaps(5)), by address.
func ReadMappings(pid int) ([]Mapping, error) {
	path := fmt.Sprintf("/proc/%d/smaps", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Mapping
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		name, isField := strings.CutSuffix(fields[0], ":")
		if !isField {
			m := Mapping{}
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.Start, &m.End); err != nil || len(fields) < 5 {
				return nil, fmt.Errorf("%s: line %q: want a mapping or a field", path, line)
			}
			m.Name = strings.Join(fields[5:], " ")
			all = append(all, m)
			continue
		}
		if name != "Pss" && name != "Private_Clean" && name != "Private_Dirty" {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if last := &all[len(all)-1]; name == "Pss" {
			last.PSS += n << 10
		} else {
			last.Private += n << 10
		}
	}
	return all, nil
}
