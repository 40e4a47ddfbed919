//go:build linux

// Package scenario has the load test's scenarios. Each scenario starts whole stacks with a real Envoy or nginx and a
// real redis-server, loads the stacks and records the results.
package scenario

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/report"
)

// Options are the options of a run, set by flags or the environment.
type Options struct {
	Scenario    string  `env:"SCENARIO" default:"all" help:"${scenarios} or all; separate several by commas."`
	Seconds     float64 `env:"SECONDS" help:"How long one measurement takes; 0 is the scenario's own default."`
	Peers       int     `env:"PEERS" help:"1: also measure alternatives."`
	Out         string  `env:"OUT" default:"build/loadtest" help:"Directory for the report."`
	Workers     int     `env:"WORKERS" help:"Workers of Envoy or nginx; 0 is half of the cores, at least 1."`
	Connections int     `env:"CONNECTIONS" default:"32" help:"Connections of a closed loop, and at most of an open one."`
	Rate        float64 `env:"RATE" help:"Requests a second of an open loop; 0 is half of what the closed loop reached."`
	Pairs       int     `env:"PAIRS" default:"8" help:"Pairs of seconds for each ratio; peers take half as many, growth 3 of 8."`
	Objects     int     `env:"OBJECTS" default:"100000" help:"Objects of 1 KiB of coldstart, catchup and, at most, growth; devices that revocation revokes at once."`
	Verdicts    int     `env:"VERDICTS" default:"100000" help:"Devices with a verdict, at most, of growth."`

	limits Limits
}

// workingDevices is the number of devices in steady and flood. Each device sends a request a second.
const workingDevices = 1000

// scenario measures one thing.
type scenario struct {
	name     string
	about    string
	measure  func(ctx context.Context, o *Options, out *Recorder) error
	notInAll bool // not part of all
}

// scenarios are all scenarios, in the order of all.
var scenarios = []scenario{
	{"304", "the client has the current version", single, false},
	{"200", "1, 4.5 and 48 KiB, as they are and as gzip", single, false},
	{"auth", "a credential, then the upstream", single, false},
	{"auth-304", "a credential, and the client has the current version", single, false},
	{"auth-200", "a credential, and 1 KiB", single, false},
	{"miss", "an object that isn't there: the upstream answers", single, false},
	{"pass", "no rule: the upstream answers", single, false},
	{"ramp", "throughput by connections", ramp, false},
	{"ratio", "Envoy's CPU per request against direct_response", ratio, false},
	{"observed", "what the access log, a traced request and virtual hosts cost", measureObserved, false},
	{"session", "a token against the credential that it was given for", session, false},
	{"growth", "what objects, verdicts and updates cost", growth, false},
	{"propagation", "publish to first new answer", propagation, false},
	{"revocation", "revocation to first 401", revocation, false},
	{"coldstart", "a sidecar that starts with nothing", coldstart, false},
	{"catchup", "a sidecar that has missed changes", catchup, false},
	{"steady", "devices at work over several lives of their verdicts", steady, false},
	{"flood", "devices at work under a flood of wrong credentials", flood, false},
	{"pauses", "five minutes at half load: p99.9 and max", pauses, false},
	{"check", "the ratios of limits.json, which must hold", check, true},
}

// Names returns the names of all scenarios.
func Names() string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return strings.Join(names, ", ")
}

// ListScenarios returns a line for each scenario.
func ListScenarios() string {
	var b strings.Builder
	for _, s := range scenarios {
		fmt.Fprintf(&b, "  %-13s %s\n", s.name, s.about)
	}
	return b.String()
}

// Check returns an error for invalid options.
func (o *Options) Check() error {
	if o.Workers == 0 {
		o.Workers = max(1, runtime.NumCPU()/2)
	}
	for name := range strings.SplitSeq(o.Scenario, ",") {
		if name != "all" && !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return fmt.Errorf("scenario %q: want one of %s, or all", name, Names())
		}
	}
	for _, f := range []struct {
		name        string
		value, from float64
	}{
		{"seconds", o.Seconds, 0}, {"rate", o.Rate, 0}, {"workers", float64(o.Workers), 1},
		{"connections", float64(o.Connections), 1},
		{"pairs", float64(o.Pairs), 1}, {"objects", float64(o.Objects), 1}, {"verdicts", float64(o.Verdicts), 1},
	} {
		if f.value < f.from {
			return fmt.Errorf("--%s=%v: want %v or more", f.name, f.value, f.from)
		}
	}
	return nil
}

// Run runs the scenarios of o, prints results to out at once, and adds each scenario's section to r. Progress goes to
// progress.
func Run(ctx context.Context, o *Options, limits Limits, r *report.Report, out, progress io.Writer) error {
	o.limits = limits
	for _, s := range scenarios {
		if !o.includesScenario(s) {
			continue
		}
		rec := &Recorder{Section: report.Section{Scenario: s.name}, out: out, progress: progress}
		begin := time.Now()
		err := s.measure(ctx, o, rec)
		r.Sections = append(r.Sections, rec.Section)
		shown := rec.Section
		shown.Notes = nil // already printed
		fmt.Fprintf(out, "%s(%s took %.0f s)\n\n", shown.Text(), s.name, time.Since(begin).Seconds())
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// includesScenario reports whether the run includes a scenario.
func (o *Options) includesScenario(s scenario) bool {
	names := strings.Split(o.Scenario, ",")
	return slices.Contains(names, s.name) || slices.Contains(names, "all") && !s.notInAll
}

// ChangedFlags returns the options that differ from the default, each with the environment variable.
func (o *Options) ChangedFlags() string {
	var flags []string
	value := reflect.ValueOf(*o)
	for _, field := range reflect.VisibleFields(value.Type()) {
		name, flag := field.Tag.Lookup("env")
		if text := fmt.Sprint(value.FieldByIndex(field.Index)); flag && text != field.Tag.Get("default") && text != "0" {
			flags = append(flags, name+"="+text)
		}
	}
	return strings.Join(flags, " ")
}

// measurementTime returns the length of a measurement that takes d seconds by default.
func (o *Options) measurementTime(d float64) time.Duration {
	if o.Seconds > 0 {
		d = o.Seconds
	}
	return time.Duration(d * float64(time.Second))
}
