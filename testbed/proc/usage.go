//go:build linux

// Package proc reads from /proc the resources that programs use, and pins threads to cores. The package needs Linux.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc (USER_HZ), the same on every Linux with Go.
const tick = 10 * time.Millisecond

// Server is a measured program, with all descendants.
type Server struct {
	Name string // in reports
	PID  int
	// Cores is the number of cores usable by the server, 0 for all.
	Cores int
	// Workers is the prefix of the names of the serving threads; empty if all threads serve.
	Workers string
	// Forks is set if the first threads of the server's children serve, as in nginx.
	Forks bool
}

// hasServingThreads reports whether only some threads of a server serve.
func (s Server) hasServingThreads() bool { return s.Workers != "" || s.Forks }

// servingThreads returns the paths of the serving threads of a server with hasServingThreads.
func (s Server) servingThreads() ([]string, error) {
	if !s.Forks {
		return listThreads(s.PID, s.Workers)
	}
	children, err := childrenOf()
	if err != nil {
		return nil, err
	}
	var tasks []string
	for _, pid := range children[s.PID] {
		tasks = append(tasks, fmt.Sprintf("/proc/%[1]d/task/%[1]d", pid))
	}
	if len(tasks) == 0 {
		return nil, fmt.Errorf("process %d has no children", s.PID)
	}
	return tasks, nil
}

// Reading has the resources used by servers and machine so far.
type Reading struct {
	at      time.Time
	servers []Server
	cpu     []time.Duration // of each server
	workers []time.Duration // of each server's serving threads
	machine time.Duration   // of all cores, without idle time
	lost    int             // retransmitted segments and refused connections on this host
}

// ReadUsage reads the resources used by servers so far.
func ReadUsage(servers []Server) (Reading, error) {
	r := Reading{at: time.Now(), servers: servers}
	children, err := childrenOf()
	if err != nil {
		return r, err
	}
	for _, s := range servers {
		all, err := treeCPU(s.PID, children)
		if err != nil {
			return r, fmt.Errorf("CPU of %s: %w", s.Name, err)
		}
		workers := all
		if s.hasServingThreads() {
			if workers, err = s.servingCPU(); err != nil {
				return r, fmt.Errorf("CPU of the threads of %s: %w", s.Name, err)
			}
		}
		r.cpu, r.workers = append(r.cpu, all), append(r.workers, workers)
	}
	if r.machine, err = machineCPU(); err != nil {
		return r, err
	}
	r.lost, err = countLost()
	return r, err
}

// Usage is the difference of two readings.
type Usage struct {
	Seconds float64
	// CPU is each server's, by name, in seconds.
	CPU map[string]float64
	// Busy is the share, 0 to 1, that a server's serving threads used of the server's cores.
	Busy map[string]float64
	// Machine is the number of busy cores.
	Machine float64
	// Lost is the number of retransmitted TCP segments and refused connections on this host.
	Lost int
}

// Since returns the resources used since before, a reading of the same servers.
func (r Reading) Since(before Reading) Usage {
	u := Usage{Seconds: r.at.Sub(before.at).Seconds(), CPU: map[string]float64{}, Busy: map[string]float64{},
		Lost: r.lost - before.lost}
	for i, s := range r.servers {
		u.CPU[s.Name] += (r.cpu[i] - before.cpu[i]).Seconds()
		cores := s.Cores
		if cores == 0 {
			cores = runtime.NumCPU()
		}
		u.Busy[s.Name] = (r.workers[i] - before.workers[i]).Seconds() / u.Seconds / float64(cores)
	}
	u.Machine = (r.machine - before.machine).Seconds() / u.Seconds
	return u
}

// Total returns the CPU time of all servers in seconds.
func (u Usage) Total() float64 {
	sum := 0.0
	for _, s := range u.CPU {
		sum += s
	}
	return sum
}

// readStat returns the fields of proc_pid_stat(5) after the name: state, ppid, …
func readStat(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("%s has %d fields, want 13 or more", path, len(fields))
	}
	return fields, nil
}

// parseTicks adds the user and system time (fields 14 and 15 of stat).
func parseTicks(fields []string) (time.Duration, error) {
	var sum time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// childrenOf returns the children of each process.
func childrenOf() (map[int][]int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range paths {
		fields, err := readStat(path)
		if err != nil {
			continue // the process has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children, nil
}

func treeCPU(pid int, children map[int][]int) (time.Duration, error) {
	fields, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	sum, err := parseTicks(fields)
	for _, child := range children[pid] {
		if d, err := treeCPU(child, children); err == nil { // with an error, the process has ended
			sum += d
		}
	}
	return sum, err
}

// listThreads returns the paths of a process's threads with names that begin with prefix.
func listThreads(pid int, prefix string) ([]string, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, task := range tasks {
		if name, err := os.ReadFile(task + "/comm"); err == nil && strings.HasPrefix(string(name), prefix) {
			found = append(found, task)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("process %d has no thread %s…", pid, prefix)
	}
	return found, nil
}

func (s Server) servingCPU() (time.Duration, error) {
	tasks, err := s.servingThreads()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, task := range tasks {
		fields, err := readStat(task + "/stat")
		if err != nil {
			return 0, err
		}
		d, err := parseTicks(fields)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// machineCPU returns the time for which all cores were not idle (first line of proc_stat(5)).
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var sum time.Duration
	for i, field := range fields[1:9] {
		if i == 3 || i == 4 { // idle and iowait
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// countLost counts retransmitted segments and refused connections.
func countLost() (int, error) {
	sum := 0
	for _, file := range []struct {
		path  string
		names []string
	}{
		{"/proc/net/snmp", []string{"Tcp.RetransSegs"}},
		{"/proc/net/netstat", []string{"TcpExt.ListenDrops"}},
	} {
		text, err := os.ReadFile(file.path)
		if err != nil {
			return 0, err
		}
		values := parseCounters(string(text))
		for _, name := range file.names {
			sum += values[name]
		}
	}
	return sum, nil
}

// parseCounters parses pairs of lines, names and values. Each line begins with the name of a protocol.
func parseCounters(text string) map[string]int {
	values := map[string]int{}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, numbers := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j := 1; j < min(len(names), len(numbers)); j++ {
			if n, err := strconv.Atoi(numbers[j]); err == nil {
				values[strings.TrimSuffix(names[0], ":")+"."+names[j]] = n
			}
		}
	}
	return values
}
