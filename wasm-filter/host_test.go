package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// fake is a proxy in memory, for the tests of plugins; package edge has a complete emulator.
type fake struct {
	edge.Host            // for what no test needs
	vmConfiguration, own string
	records              map[string][]byte
	streams              map[uint32]*exchange
	current, newest, cas uint32
	logs                 []string
}

// exchange is a stream as the proxy sees it.
type exchange struct {
	request [][2]string
	status  int // of the reply, 0 for none
}

const epoch = 7

func newFake(vmConfiguration string) *fake {
	f := &fake{vmConfiguration: vmConfiguration, records: map[string][]byte{},
		streams: map[uint32]*exchange{}, newest: 1000}
	f.SetState(wire.AppendState(nil, &wire.State{Epoch: epoch, ObjectBuckets: 4, VerdictBuckets: 4, InStepMS: f.Now()}), 0)
	return f
}

func place(region wire.Region, index uint32) string {
	return string(wire.AppendPlace(nil, region, index))
}

func (f *fake) configuration() []byte               { return []byte(f.vmConfiguration) }
func (f *fake) pluginConfiguration(size int) []byte { return []byte(f.own[:size]) }
func (*fake) setTickPeriod(uint32) error            { return nil }
func (f *fake) logCritical(message string)          { f.logs = append(f.logs, message) }

func (*fake) Now() int64 { return time.Now().UnixMilli() }

func (f *fake) Record(region wire.Region, index uint32) []byte {
	return f.records[place(region, index)]
}

func (f *fake) SetRecord(region wire.Region, index uint32, value []byte) error {
	f.records[place(region, index)] = bytes.Clone(value)
	return nil
}

func (f *fake) State() ([]byte, uint32) { return f.Record(wire.RegionState, 0), f.cas }

func (f *fake) SetState(value []byte, cas uint32) bool {
	f.cas++
	return (cas == 0 || cas == f.cas-1) && f.SetRecord(wire.RegionState, 0, value) == nil
}

func (*fake) Guard() uint64 { return 0 }

func (f *fake) RequestHeaders() []byte { return headermap.Append(nil, f.streams[f.current].request) }

func (*fake) RequestHeader(string) string { return "" }

func (*fake) RemoveRequestHeader(string)      {}
func (*fake) AddRequestHeader(string, string) {}

func (*fake) AwaitResponse() bool         { return false }
func (*fake) SetNote(policy.Note, string) {}

func (f *fake) Reply(status int, _ string, _, _ []byte) { f.streams[f.current].status = status }

func (*fake) DefineCounter(string) uint32     { return 1 }
func (*fake) IncrementCounter(uint32, uint64) {}
func (f *fake) Warn(message string)           { f.logs = append(f.logs, message) }

// logged fails the test unless the log has a text.
func (f *fake) logged(t *testing.T, want string) {
	t.Helper()
	if logs := strings.Join(f.logs, ""); !strings.Contains(logs, want) {
		t.Errorf("got %q, want %q", logs, want)
	}
}

func TestConfigure(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		plugin       int // bytes of the plugin's own configuration
		want         string
	}{
		{"unknown field", `{"rules": [{"match": {"path": "/a"}, "cash": {}}]}`, 0,
			"gatehouse: vm_config.configuration is invalid:\n  rules[0].cash: unknown field"},
		{"none", "", 0, "vm_config.configuration is invalid"},
		{"the plugin's own", `{}`, 17, "configuration has 17 bytes, want none: move its content to vm_config.configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(tt.config)
			if configureVM(edge.New(f), f, tt.plugin) {
				t.Error("got true, want false")
			}
			f.logged(t, tt.want)
		})
	}
}
