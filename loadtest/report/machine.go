package report

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// Machine describes the machine and the versions of a result.
type Machine struct {
	Commit   string            `json:"commit"` // with "+ changes" if the tree differs
	Time     time.Time         `json:"time"`
	Flags    string            `json:"flags"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Memory   string            `json:"memory"`
	Kernel   string            `json:"kernel"`
	Load     string            `json:"load"` // load averages at the start of the run
	Versions map[string]string `json:"versions"`
}

// programs are the command lines that print the versions of a load test's programs.
var programs = []struct {
	name, path string
	args       []string
}{
	{"wrk", "wrk", []string{"-v"}},
	{"redis-server", "redis-server", []string{"--version"}},
	{"nginx", "nginx", []string{"-v"}},
	{"varnish", "varnishd", []string{"-V"}},
}

// DescribeMachine describes this machine; envoy is the path of Envoy's binary.
func DescribeMachine(ctx context.Context, envoy, flags string) Machine {
	m := Machine{
		Time: time.Now(), Flags: flags, Cores: runtime.NumCPU(),
		CPU: fieldOf("/proc/cpuinfo", "model name"), Memory: fieldOf("/proc/meminfo", "MemTotal"),
		Kernel: firstLine(os.ReadFile("/proc/sys/kernel/osrelease")), Load: firstLine(os.ReadFile("/proc/loadavg")),
		Versions: map[string]string{"go": runtime.Version(), "envoy": programVersion(ctx, envoy, "--version")},
	}
	m.Commit = firstLine(exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output())
	if changes := firstLine(exec.CommandContext(ctx, "git", "status", "--porcelain").Output()); changes != "" {
		m.Commit += " + changes"
	}
	for _, p := range programs {
		for _, path := range []string{p.path, "/usr/sbin/" + p.path} {
			if _, err := exec.LookPath(path); err == nil {
				m.Versions[p.name] = programVersion(ctx, path, p.args...)
				break
			}
		}
	}
	return m
}

var versionPattern = regexp.MustCompile(`\d+\.\d+\.\d+`)

// programVersion returns the first version number of three parts in a program's output. wrk exits with an error after
// printing its version.
func programVersion(ctx context.Context, path string, args ...string) string {
	text, _ := exec.CommandContext(ctx, path, args...).CombinedOutput()
	return versionPattern.FindString(string(text))
}

func firstLine(text []byte, _ error) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

// fieldOf returns the value of a file's first line with the prefix name.
func fieldOf(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Trim(rest, ": \t\n")
		}
	}
	return ""
}

// NamedFacts returns names and values of the machine's properties.
func (m Machine) NamedFacts() [][2]string {
	var versions []string
	for _, name := range []string{"go", "envoy", "redis-server", "wrk", "nginx", "varnish"} {
		if v := m.Versions[name]; v != "" {
			versions = append(versions, name+" "+v)
		}
	}
	return [][2]string{
		{"commit", m.Commit}, {"time", m.Time.UTC().Format(time.RFC3339)}, {"flags", m.Flags},
		{"machine", fmt.Sprintf("%d × %s, %s, Linux %s", m.Cores, m.CPU, m.Memory, m.Kernel)},
		{"versions", strings.Join(versions, ", ")}, {"load when it began", m.Load},
	}
}
