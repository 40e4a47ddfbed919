//go:build linux

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/openloop"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// The numbers of addresses and connections of a flood, and its rate.
const (
	flooders   = 250
	floodConns = 1000
	floodRate  = 5000 // wrong credentials a second
)

// floodNice is the niceness of a flood: real floods use the processors of other machines.
const floodNice = 10

// Flooder is the command line of a flood of random secrets: half for unknown devices, a quarter for devices of the
// fleet (refused by the edge itself once a device is authenticated), and a quarter for as many devices that never send
// requests.
type Flooder struct {
	URL string `required:"" help:"The edge."`
}

// floodResult is the result of a flood.
type floodResult struct {
	Seconds  float64       `json:"seconds"`
	Statuses map[int]int64 `json:"statuses"` // responses by status code; none may be 200
	Lost     int64         `json:"lost"`     // connections lost and replaced
}

// Run floods until ctx ends, and prints the result.
func (f Flooder) Run(ctx context.Context) error {
	host := strings.TrimPrefix(f.URL, "http://")
	next := func(dst []byte, _ int64) []byte {
		id := "unknown"
		n := rand.Uint64()
		switch rand.IntN(4) {
		case 0:
			id, n = "good", rand.Uint64N(workingDevices)
		case 1:
			id, n = "idle", rand.Uint64N(workingDevices)
		}
		return appendTelemetry(dst, host, fmt.Sprint(id, n), fmt.Sprint("wrong", rand.Uint64()))
	}
	result, err := openloop.Run(ctx, f.URL, next, openloop.Load{
		Rate: floodRate, Duration: time.Hour, Connections: floodConns, Nice: floodNice,
		From: func(i int) [4]byte { return loopbackAddress(2, i%flooders) },
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(floodResult{result.Seconds, result.Statuses, result.Errors["closed"]})
}

// runningFlood is a running flood.
type runningFlood struct {
	process *stack.Child
	log     string
}

// startFlood starts a flood in its own process.
func startFlood(dir, url string) (*runningFlood, error) {
	dir, err := os.MkdirTemp(dir, "flood-") // an earlier flood may have used dir
	if err != nil {
		return nil, err
	}
	f := &runningFlood{log: filepath.Join(dir, "flood.json")}
	f.process, err = stack.StartChild("flood", "", []string{"flood", "--url", url}, nil, f.log, nil)
	return f, err
}

// cpuServer returns the flood's process for CPU measurements.
func (f *runningFlood) cpuServer() proc.Server {
	return proc.Server{Name: "flood", PID: f.process.PID()}
}

// stop ends the flood and returns its result.
func (f *runningFlood) stop() (floodResult, error) {
	var result floodResult
	if err := f.process.Stop(); err != nil {
		return result, err
	}
	text, err := os.ReadFile(f.log)
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return result, fmt.Errorf("the flood said %q: %w", text, err)
	}
	return result, nil
}
