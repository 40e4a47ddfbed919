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
	"github.com/gatehouse/gatehouse/loadtest/proc"
)

// flooders is how many addresses a flood comes from, and floodConns how many connections.
const (
	flooders   = 250
	floodConns = 1000
)

// floodNice is the niceness of a flood: a flood comes from other machines, whose
// processors are not those of the edge.
const floodNice = 10

// Flooder is the command line of a flood: random secrets for known and unknown devices, half
// for unknown ones, a quarter for those of the fleet, which the edge refuses by itself once
// they are in, and a quarter for as many that never come.
type Flooder struct {
	URL     string `required:"" help:"The edge."`
	Rate    int    `required:"" help:"Requests a second."`
	Devices int    `required:"" help:"Devices of the fleet, and as many that never come."`
}

// flooded is what came of a flood.
type flooded struct {
	Seconds  float64       `json:"seconds"`
	Statuses map[int]int64 `json:"statuses"` // answers by status code; of 200 there must be none
	Lost     int64         `json:"lost"`     // connections, and made again
}

// Run floods until ctx ends, and prints what came of it.
func (f Flooder) Run(ctx context.Context) error {
	host := strings.TrimPrefix(f.URL, "http://")
	next := func(dst []byte, _ int64) []byte {
		id := "unknown"
		n := rand.Uint64()
		switch rand.IntN(4) {
		case 0:
			id, n = "good", rand.Uint64N(uint64(f.Devices))
		case 1:
			id, n = "idle", rand.Uint64N(uint64(f.Devices))
		}
		return telemetry(dst, host, fmt.Sprint(id, n), fmt.Sprint("wrong", rand.Uint64()))
	}
	result, err := openloop.Run(ctx, f.URL, next, openloop.Load{
		Rate: float64(f.Rate), Duration: time.Hour, Connections: floodConns, Nice: floodNice,
		From: func(i int) [4]byte { return host127(2, i%flooders) },
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(flooded{result.Seconds, result.Statuses, result.Errors["closed"]})
}

// flooding is a flood that runs.
type flooding struct {
	process *proc.Process
	log     string
}

// startFlood starts a flood as a process of its own.
func startFlood(dir, url string, devices, rate int) (*flooding, error) {
	f := &flooding{log: filepath.Join(dir, "flood.json")}
	var err error
	f.process, err = proc.Start(proc.Program{Name: "flood", Log: f.log,
		Args: []string{"flood", "--url", url, fmt.Sprint("--rate=", rate), fmt.Sprint("--devices=", devices)}})
	return f, err
}

// client is what the flood's CPU is measured by.
func (f *flooding) client() proc.Server { return proc.Server{Name: "flood", PID: f.process.PID()} }

// stop ends the flood.
func (f *flooding) stop() (flooded, error) {
	var result flooded
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
