// Package wrk runs wrk, a closed loop: each connection sends a request as soon as the previous response has arrived.
// wrk finds a server's maximum throughput. Latencies are measured at maximum load, and omit requests delayed by slow
// responses.
package wrk

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/stats"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

// Load describes the load.
type Load struct {
	Threads, Connections int
	Duration             time.Duration
}

// Result is the result of a run.
type Result struct {
	Requests int64
	Seconds  float64
	// Percentiles are latencies in microseconds, one for each of [stats.Percents].
	Percentiles []float64
	// Errors by kind: connect, read, write, timeout, status (400 and above).
	Errors map[string]int64
	// CPU is wrk's CPU time.
	CPU time.Duration
}

// resultMarker begins the line of results that report.lua prints.
const resultMarker = "gatehouse-result "

//go:embed report.lua
var reportLua string

// Run loads url with w, and writes the script to dir.
func Run(ctx context.Context, url string, w workload.Workload, l Load, dir string) (Result, error) {
	p, err := Start(ctx, url, w, l, dir)
	if err != nil {
		return Result{}, err
	}
	return p.Result()
}

// Process is a running wrk. wrk ends after Load.Duration, or with the context, also while on hold.
type Process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	done   chan struct{}
	err    error // valid when done is closed
}

// Start starts loading url with w.
func Start(ctx context.Context, url string, w workload.Workload, l Load, dir string) (*Process, error) {
	script, err := os.CreateTemp(dir, "wrk-*.lua")
	if err == nil {
		_, err = script.WriteString(LuaScript(w, strings.TrimPrefix(url, "http://")))
		err = errors.Join(err, script.Close())
	}
	if err != nil {
		return nil, err
	}
	args := []string{
		"-t" + strconv.Itoa(min(l.Threads, l.Connections)), "-c" + strconv.Itoa(l.Connections),
		"-d" + fmt.Sprintf("%ds", int(max(l.Duration.Seconds(), 1))), "-s", script.Name(),
	}
	if w.Count > 0 {
		w.Path, w.Headers = "/", nil // the script makes the requests
	}
	for _, h := range w.Headers {
		args = append(args, "-H", h)
	}
	p := &Process{cmd: exec.CommandContext(ctx, "wrk", append(args, url+w.Path)...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w; install wrk (apt-get install wrk)", err)
		}
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Hold pauses wrk: outstanding requests get responses, and wrk sends no requests until Resume.
func (p *Process) Hold() error { return p.sendSignal(syscall.SIGSTOP) }

// Resume continues wrk.
func (p *Process) Resume() error { return p.sendSignal(syscall.SIGCONT) }

func (p *Process) sendSignal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Done returns a channel that is closed when wrk has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Result waits for wrk's end and returns the result. Rate and latencies have no meaning after a Hold.
func (p *Process) Result() (Result, error) {
	<-p.done
	if p.err != nil {
		return Result{}, fmt.Errorf("wrk: %w: %s", p.err, &p.output)
	}
	result, err := ParseOutput(p.output.String())
	result.CPU = p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	return result, err
}

// LuaScript returns the Lua script for a workload: one request made by wrk, which costs the client least, or several
// requests in turn.
func LuaScript(w workload.Workload, host string) string {
	var b strings.Builder
	if w.Count > 0 {
		count := w.Count
		w.Count = 0
		parts := strings.Split(string(w.Requests(host)[0]), workload.NumberPlaceholder)
		for i := range parts {
			parts[i] = quoteLua(parts[i])
		}
		// Threads and runs begin at different requests, spread by the golden ratio: short runs must not all send the
		// same requests.
		fmt.Fprintf(&b, "local count, next, threads = %d, 0, 0\n"+
			"function setup(thread) thread:set(\"number\", threads); threads = threads + 1 end\n"+
			"function init() next = math.floor((os.time() * 0.6180339887 + number * 0.41) %% 1 * count) end\n"+
			"function request() next = (next + 1) %% count; return %s end\n", count, strings.Join(parts, " .. next .. "))
	} else {
		fmt.Fprintf(&b, "wrk.method = %s\n", quoteLua(w.Method))
	}
	percents := make([]string, len(stats.Percents))
	for i, p := range stats.Percents {
		percents[i] = fmt.Sprint(p)
	}
	return b.String() + "local marker, percents = " + quoteLua(resultMarker) + ", {" +
		strings.Join(percents, ",") + "}\n" + reportLua
}

// quoteLua returns s as a Lua string literal.
func quoteLua(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		if c < ' ' || c == '"' || c == '\\' || c > '~' {
			fmt.Fprintf(&b, `\%03d`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// ParseOutput parses the output of wrk and report.lua.
func ParseOutput(text string) (Result, error) {
	_, line, found := strings.Cut(text, resultMarker)
	if !found {
		return Result{}, fmt.Errorf("wrk printed no result: %q", text)
	}
	line, _, _ = strings.Cut(line, "\n")
	var raw struct {
		Requests, DurationUS int64
		Percentiles          []float64
		Errors               map[string]int64
	}
	if err := json.Unmarshal([]byte(line), &raw); err != nil {
		return Result{}, fmt.Errorf("wrk's result %q: %w", line, err)
	}
	if len(raw.Percentiles) != len(stats.Percents) || raw.DurationUS <= 0 {
		return Result{}, fmt.Errorf("wrk's result %q: want %d percentiles and a duration", line, len(stats.Percents))
	}
	for kind, n := range raw.Errors {
		if n == 0 {
			delete(raw.Errors, kind)
		}
	}
	return Result{
		Requests: raw.Requests, Seconds: float64(raw.DurationUS) / 1e6, Percentiles: raw.Percentiles, Errors: raw.Errors,
	}, nil
}
