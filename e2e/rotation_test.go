package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRotation rotates devices one after another while clients send the old and the new secret of each, five times a
// second: none is refused in the overlap, and 20 ms after the overlap's end each edge refuses every old secret. The new
// secrets stay, and no bcrypt runs again for the old ones.
func TestRotation(t *testing.T) {
	e := reuse(t, stack.Options{})
	devices, overlap := pickSize(1000, 20), time.Duration(pickSize(5, 2))*time.Second
	id := func(i int) string { return fmt.Sprint("rotated-", i) }
	for i := range devices {
		e.putDevice(id(i), "old", 4, "telemetry.write")
	}
	send := func(client *http.Client, i int, secret string) (status int, began, ended time.Time) {
		began = time.Now()
		a, err := e.try(client, "POST /v1/telemetry", credential(id(i), secret)...)
		if err != nil {
			t.Errorf("%s, %s secret: %v", id(i), secret, err)
		}
		return a.status, began, time.Now()
	}
	// follow sends both secrets of a device until the overlap is over, and then at once the old secret.
	follow := func(i int, end time.Time) {
		client := clientFrom(2 + i%200)
		defer client.CloseIdleConnections()
		var wg sync.WaitGroup
		for _, secret := range []string{"old", "new"} {
			wg.Go(func() {
				for tick := time.Now(); ; tick = tick.Add(200 * time.Millisecond) {
					waitUntil(t, tick)
					status, began, ended := send(client, i, secret)
					switch {
					case secret == "new" || ended.Before(end):
						if status != http.StatusOK {
							t.Errorf("%s, %s secret, %v before the end: got %d", id(i), secret, end.Sub(began), status)
						}
					case began.After(end.Add(20*time.Millisecond)) && status != http.StatusUnauthorized:
						t.Errorf("%s, old secret, %v after the end: got %d", id(i), began.Sub(end), status)
					}
					if began.After(end.Add(300 * time.Millisecond)) {
						return
					}
				}
			})
		}
		wg.Go(func() {
			waitUntil(t, end.Add(21*time.Millisecond))
			if status, began, _ := send(client, i, "old"); status != http.StatusUnauthorized {
				t.Errorf("%s, old secret, %v after the end: got %d", id(i), began.Sub(end), status)
			}
		})
		wg.Wait()
	}
	clients := e.workerClients()
	for i := range devices {
		require.NoError(t, e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", credential(id(i), "old")...))
	}
	before := e.metric("gatehouse_bcrypt_total")
	var following sync.WaitGroup
	for i := range devices {
		if _, err := e.publisher.RotateDevice(t.Context(), publish.Rotation{ID: id(i), Secret: "new", Overlap: overlap,
			Cost: 4}); err != nil {
			t.Fatal(err)
		}
		device, err := e.publisher.GetDevice(t.Context(), id(i))
		require.NoError(t, err)
		e.awaitAnswer("the new secret is valid", hasStatus(200), "POST /v1/telemetry", credential(id(i), "new")...)
		following.Go(func() { follow(i, time.UnixMilli(device.OldUntilMS)) })
	}
	following.Wait()
	if runs := e.metric("gatehouse_bcrypt_total") - before; runs > float64(devices+devices/10) {
		t.Errorf("%v runs of bcrypt for %d rotations, want one each, for the new hash", runs, devices)
	}
}

// waitUntil returns at a time, or when the test ends.
func waitUntil(t *testing.T, at time.Time) {
	select {
	case <-time.After(time.Until(at)):
	case <-t.Context().Done():
	}
}
