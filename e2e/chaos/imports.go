package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// importBatch devices are imported at once, in at most importBatches batches.
	importBatch   = 12
	importBatches = 128
	// importedLife is how long a batch shows its secrets after a change: longer than the change takes to reach the edges.
	importedLife = 4 * time.Second
	// ofImports begins the names of the rules about imported devices.
	importRulePrefix = "imported: "
	// importedPermission is the permission of imported devices.
	importedPermission = "telemetry.write"
)

// imports imports devices with generated secrets, whose hashes the sidecars upgrade when the devices first
// authenticate. Each device gets another secret at about the time of the upgrade. Later nothing changes the devices.
type imports struct {
	*ledger
	secrets [][2]string // of versions 1 and 2, by device
	// lost counts how often Redis lost something, or all devices were revoked: the devices' state is unknown afterwards.
	// The ledger's lock protects lost.
	lost              int
	imported, rotated int
}

func importedID(device int) string { return fmt.Sprintf("imported-%04d", device) }

func newImports(r *run) *imports {
	m := &imports{secrets: make([][2]string, importBatch*importBatches)}
	for i := range m.secrets {
		m.secrets[i] = [2]string{contract.NewSecret(), contract.NewSecret()}
	}
	m.ledger = newLedger(r, importRulePrefix, len(m.secrets), importedID, func(device int, version uint64) string {
		return m.secrets[device][version-1]
	}, func(uint64) string { return importedPermission })
	m.good = func(h *history, read *Read) bool {
		at, acked := h.ackOf(read.Version)
		m.run.devices.mu.Lock()
		defer m.run.devices.mu.Unlock()
		return acked && !h.mayBeOvertaken(read.Version, read.End) && m.run.devices.hasSettled(at, read.Start)
	}
	m.steady = func(time.Duration) bool { return true }
	return m
}

// forgetDevices makes the answers about all devices count no more.
func (m *imports) forgetDevices() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost++
	for i := range m.devices {
		m.devices[i] = history{}
	}
}

// startImports imports batches until writing ends.
func (m *imports) startImports(writing, reading context.Context, publisher *publish.Publisher,
	writers *sync.WaitGroup) {
	writers.Go(func() {
		for batch := 0; batch < importBatches && writing.Err() == nil; batch++ {
			m.runBatch(writing, reading, publisher, batch*importBatch)
		}
	})
}

// runBatch imports the devices from first on, and tests each.
func (m *imports) runBatch(writing, reading context.Context, publisher *publish.Publisher, first int) {
	devices := make([]publish.Device, importBatch)
	for i := range devices {
		hash, err := publish.HashSecret(m.secrets[first+i][0], secretCost, nil)
		if err != nil {
			panic(err) // the secret and the cost are ours
		}
		devices[i] = publish.Device{ID: importedID(first + i), Hashes: []string{hash},
			Permissions: []string{importedPermission}}
	}
	lost, ok := m.addDevices(writing, publisher, devices, first)
	if !ok || !wait(writing, 500*time.Millisecond) { // the sidecars have them
		return
	}
	var living sync.WaitGroup
	for i := range devices {
		living.Go(func() { m.testDevice(reading, publisher, first+i, lost) })
	}
	living.Wait()
}

// addDevices imports devices, again until all are acknowledged, and reports whether all are.
func (m *imports) addDevices(ctx context.Context, publisher *publish.Publisher, devices []publish.Device,
	first int) (lost int, ok bool) {
	for wait(ctx, 100*time.Millisecond) {
		m.run.writing.RLock()
		m.mu.Lock()
		lost = m.lost
		begun := m.run.world.now()
		m.mu.Unlock()
		errs := make([]error, len(devices))
		for i, result := range publisher.AddDevices(context.Background(), devices, false) {
			errs[i] = result.Err
		}
		err := errors.Join(errs...)
		if err == nil {
			m.mu.Lock()
			for i := range devices {
				h := &m.devices[first+i]
				h.endWrite(h.beginWrite(Put, begun, 0), Acked, m.run.world.now())
			}
			m.imported += len(devices)
			m.mu.Unlock()
		}
		m.run.writing.RUnlock()
		switch {
		case err == nil:
			return lost, true
		case errors.Is(err, publish.ErrExists): // revoked meanwhile
			return lost, false
		}
	}
	return lost, false
}

// testDevice shows a device's first secret, so that its hash is upgraded, changes the secret meanwhile, and shows both
// secrets.
func (m *imports) testDevice(ctx context.Context, publisher *publish.Publisher, device, lost int) {
	s := m.newSecretClient(device)
	defer s.close()
	var first sync.WaitGroup
	first.Go(func() { s.showSecret(ctx, false) })
	wait(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
	rotated := m.rotateSecret(publisher, device, lost)
	first.Wait()
	for end := m.run.world.now() + importedLife; rotated && m.run.world.now() < end && wait(ctx, 200*time.Millisecond); {
		s.showSecret(ctx, rand.IntN(3) == 0)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices[device] = history{}
}

// rotateSecret gives a device its second secret, and reports whether the secret is acknowledged.
func (m *imports) rotateSecret(publisher *publish.Publisher, device, lost int) bool {
	m.run.writing.RLock()
	defer m.run.writing.RUnlock()
	m.mu.Lock()
	h := &m.devices[device]
	if m.lost != lost {
		m.mu.Unlock()
		return false
	}
	version := h.beginWrite(Put, m.run.world.now(), 0)
	m.mu.Unlock()
	_, err := publisher.RotateDevice(context.Background(), publish.Rotation{ID: importedID(device),
		Secret: m.secrets[device][version-1], Cost: secretCost})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != lost {
		return false
	}
	if err == nil {
		h.endWrite(version, Acked, m.run.world.now())
		m.rotated++
	}
	return err == nil
}

func (m *imports) summary() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("imports: %d devices, %d of them got another secret during the upgrade; shown %d let in, "+
		"%d refused, %d not verified\n", m.imported, m.rotated, m.answers[Hit], m.answers[Refused], m.answers[Unverified])
}
