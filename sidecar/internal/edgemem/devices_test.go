package edgemem_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestCredentialStatus checks the status of a device's right secret and of a wrong secret.
func TestCredentialStatus(t *testing.T) {
	life := func(d time.Duration, outcome wire.Outcome) wire.Verdict {
		return wire.Verdict{Outcome: outcome, ExpiresMS: time.Now().Add(d).UnixMilli()}
	}
	closed := func(m edge) { m.PutVerdict("d", "right", life(time.Minute, wire.Allow), true) }
	tests := []struct {
		name         string
		do           func(m edge)
		right, wrong wire.CredentialStatus
	}{
		{"registered", func(edge) {}, wire.New, wire.New},
		{"registered twice", func(m edge) { m.PutDevice("d", true) }, wire.New, wire.New},
		{"only a wrong secret was shown", func(m edge) {
			m.PutVerdict("d", "wrong", life(time.Minute, wire.Deny), false)
		}, wire.New, wire.Found},
		{"registered again after it was in", func(m edge) {
			m.DropDevice("d")
			m.PutDevice("d", false)
		}, wire.Registered, wire.Registered},
		{"new in a new epoch", func(m edge) { m.Reset(nil) }, wire.New, wire.New},
		{"its only secret is in", closed, wire.Found, wire.Closed},
		{"and again, refreshed", func(m edge) { closed(m); closed(m) }, wire.Found, wire.Closed},
		{"and another device's is wrong", func(m edge) {
			closed(m)
			m.PutVerdict("e", "wrong", life(time.Minute, wire.Deny), false)
		}, wire.Found, wire.Closed},
		{"one of two secrets is in", func(m edge) {
			m.PutVerdict("d", "right", life(time.Minute, wire.Allow), false)
		}, wire.Found, wire.Registered},
		{"refreshed as one of two", func(m edge) {
			closed(m)
			m.PutVerdict("d", "right", life(time.Minute, wire.Allow), false)
		}, wire.Found, wire.Registered},
		{"its verdict has expired", func(m edge) {
			m.PutVerdict("d", "right", life(time.Second, wire.Allow), true)
			time.Sleep(2 * time.Second)
		}, wire.Registered, wire.Registered},
		{"its verdict was dropped", func(m edge) {
			closed(m)
			m.DropVerdicts("d")
		}, wire.Registered, wire.Registered},
		{"its verdict was evicted", func(m edge) {
			closed(m)
			for i := range 4 {
				m.PutVerdict(fmt.Sprint(i), "s", life(time.Hour, wire.Allow), false)
			}
		}, wire.Registered, wire.Registered},
		{"it may no longer come in", func(m edge) {
			closed(m)
			m.DropVerdicts("d")
			m.DropDevice("d")
		}, wire.Unregistered, wire.Unregistered},
		{"it never was there", func(m edge) {
			m.DropDevice("d")
			m.DropDevice("d")
		}, wire.Unregistered, wire.Unregistered},
		{"a new epoch", func(m edge) { closed(m); m.Reset(nil) }, wire.Found, wire.Closed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, memory := newEdge(edgemem.Config{Verdicts: 4}), edgememtest.NewMemory()
				m.Reset(nil)
				require.NoError(t, errors.Join(m.PutDevice("d", true), m.PutDevice("e", true)))
				m.SetDevicesComplete()
				tt.do(m)
				m.Sweep()
				push(t, m, memory)
				right, complete := memory.Status("d", "right")
				if wrong, _ := memory.Status("d", "wrong"); right != tt.right || wrong != tt.wrong || !complete {
					t.Errorf("got %d for the right secret, %d for another, complete %v; want %d, %d, true",
						right, wrong, complete, tt.right, tt.wrong)
				}
				if other, _ := memory.Status("e", "s"); other != wire.New {
					t.Errorf("another device: got %d, want %d", other, wire.New)
				}
			})
		})
	}
}

// TestCompleteComesBehindTheDevices reads between any two operations, in a first epoch and in a takeover: whenever the
// state declares the list complete, all devices are listed.
func TestCompleteComesBehindTheDevices(t *testing.T) {
	const devices = 3000
	m, memory := newEdge(edgemem.Config{Verdicts: 4 * devices}), edgememtest.NewMemory()
	ids := make([]string, devices)
	for i := range ids {
		ids[i] = fmt.Sprint("device", i)
		require.NoError(t, m.PutDevice(ids[i], true))
	}
	m.Reset(nil)
	push(t, m, memory)
	if _, complete := memory.Status("x", "s"); complete {
		t.Error("complete before the sidecar knows all devices")
	}
	complete := 0
	memory.AfterOp = func() {
		state, _ := memory.LockedState()
		if !state.DevicesComplete {
			return
		}
		complete++
		for _, id := range ids {
			if _, status := memory.LockedCredentialBy(&state, id, "s"); status != wire.New {
				t.Fatalf("%s: got status %d when the state is complete, want %d", id, status, wire.New)
			}
		}
	}
	m.SetDevicesComplete()
	push(t, m, memory)
	for _, id := range []string{"one more", "and another"} {
		ids = append(ids, id)
		require.NoError(t, m.PutDevice(id, true))
		before, _ := memory.State()
		m.Reset(&before)
		push(t, m, memory)
		if _, complete := memory.Status(id, "s"); !complete {
			t.Errorf("epoch of %s: not complete at its end", id)
		}
	}
	if complete < 3 {
		t.Errorf("complete after %d operations, want at least one for each epoch", complete)
	}
}

// TestCrowded registers one device more than the edge can list.
func TestCrowded(t *testing.T) {
	m, memory := newEdge(edgemem.Config{Verdicts: 4}), edgememtest.NewMemory() // one bucket
	m.Reset(nil)
	m.SetDevicesComplete()
	for i := range 16 {
		require.NoError(t, m.PutDevice(fmt.Sprint(i), true))
	}
	push(t, m, memory)
	if _, complete := memory.Status("x", "s"); !complete {
		t.Error("not complete with as many devices as there may be")
	}
	crowded := func(err error) bool {
		e, ok := errors.AsType[*edgemem.DevicesError](err)
		return ok && e.Most == 16
	}
	if err := m.PutDevice("16", true); !crowded(err) {
		t.Errorf("got %v, want that 16 is the most", err)
	}
	m.PutVerdict("3", "right", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, true)
	m.DropDevice("5") // room for another one, but 16 is still not listed
	m.DropDevice("16")
	push(t, m, memory)
	state, _ := memory.State()
	m.Reset(&state)
	m.PutVerdict("3", "right", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, true)
	push(t, m, memory)
	if status, complete := memory.Status("16", "s"); status != wire.Unregistered || complete {
		t.Errorf("got status %d, complete %v for the device that is not listed, want %d, false", status,
			complete, wire.Unregistered)
	}
	if status, _ := memory.Status("3", "wrong"); status != wire.Closed {
		t.Errorf("got status %d for a device that is listed, want %d", status, wire.Closed)
	}
	if got := m.Memory.Stats().Devices; got != 15 {
		t.Errorf("got %d devices, want 15", got)
	}
}
