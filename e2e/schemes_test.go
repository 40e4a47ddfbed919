package e2e

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

func newPepper(t *testing.T, content string) (*contract.Pepper, string) {
	t.Helper()
	pepper, err := contract.NewPepper([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return &pepper, writeFile(t, "pepper", content+"\n")
}

// callConcurrently calls f for 0 to n-1, from 32 goroutines, and returns the duration.
func callConcurrently(t *testing.T, n int, f func(i int) error) time.Duration {
	t.Helper()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !t.Failed(); i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					t.Errorf("device %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// TestColdFleet sends the first request of 100,000 gh1 devices: one sidecar verifies all within 30 s.
func TestColdFleet(t *testing.T) {
	pepper, file := newPepper(t, strings.Repeat("p", 64))
	e := start(t, stack.Options{SidecarArgs: []string{"--credential.pepper-file=" + file}})
	n := pickSize(100_000, 500)
	e.put("/v1/fleet/config", "{}")
	secrets := make([]string, n)
	id := func(i int) string { return fmt.Sprint("cold-", i) }
	known := int(e.metric("gatehouse_credentials"))
	took := callConcurrently(t, n, func(i int) error {
		secrets[i] = contract.NewSecret()
		_, err := e.publisher.PutDevice(t.Context(), publish.Device{ID: id(i), Secret: secrets[i], Pepper: pepper,
			Permissions: []string{"config.read"}})
		return err
	})
	t.Logf("%d devices registered in %v", n, took)
	e.awaitRecords(known + n)
	took = callConcurrently(t, n, func(i int) error {
		a, err := e.try(shared, "GET /v1/fleet/config", credential(id(i), secrets[i])...)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("got %d", a.status)
		}
		return err
	})
	t.Logf("%d cold devices verified in %v: %.0f a second", n, took, float64(n)/took.Seconds())
	if took > 30*time.Second {
		t.Error("want at most 30s")
	}
	if got := e.metric("gatehouse_bcrypt_total"); got != 0 {
		t.Errorf("%v runs of bcrypt, want none", got)
	}
	for range 10 {
		if a := e.send("GET /v1/fleet/config", credential(id(0), contract.NewSecret())...); a.status != 401 {
			t.Errorf("a wrong secret: got %d", a.status)
		}
	}
}

// TestSchemes verifies hashes of other programs, and refuses wrong secrets.
func TestSchemes(t *testing.T) {
	leaveToNative(t)
	e := reuse(t, stack.Options{})
	hashes := map[string]string{ // as in clients/go/passhash/testdata
		"argon2id": "$argon2id$v=19$m=19456,t=2,p=1$AAECAwQFBgcICQoLDA0ODw$k6lIBczu9u2RPdUnNGWKsw9YKqDARM+VQdxxzhLuAb4",
		"scrypt":   "$scrypt$ln=10,r=8,p=1$AAECAwQFBgcICQoLDA0ODw$jH2Q0DVu/biUHDn5RfgnP5UFEFC5iPDs9jIYmGfMTIE",
		"pbkdf2":   "$pbkdf2-sha256$29000$.//7//v/.//7//v/.//7/w$bBGmNuclSZ68EcVjvQUiaLNLaNXxlzs0a7aG4bhaBQo",
	}
	for id, hash := range hashes {
		d := publish.Device{ID: id, Hashes: []string{hash}, Permissions: []string{"telemetry.write"}}
		if _, err := e.publisher.PutDevice(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		e.awaitAnswer(id, hasStatus(200), "POST /v1/telemetry", credential(id, "correct horse é")...)
		if a := e.send("POST /v1/telemetry", credential(id, "wrong")...); a.status != 401 {
			t.Errorf("%s: a wrong secret: got %d", id, a.status)
		}
	}
}

// TestUpgradeToGH1 hashes a generated secret again when the secret's device authenticates. The device is never refused
// meanwhile.
func TestUpgradeToGH1(t *testing.T) {
	leaveToNative(t)
	pepper, file := newPepper(t, strings.Repeat("n", 64))
	e := start(t, stack.Options{SidecarArgs: []string{"--credential.pepper-file=" + file, "--credential.upgrade"}})
	secret := contract.NewSecret()
	d := publish.Device{ID: "d", Secret: secret, Cost: 4, Permissions: []string{"telemetry.write"}}
	if _, err := e.publisher.PutDevice(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	e.awaitAnswer("the device is known", hasStatus(200), "POST /v1/telemetry", credential("d", secret)...)
	await(t, "the upgrade", patience, func() error {
		if a := e.send("POST /v1/telemetry", credential("d", secret)...); a.status != 200 {
			t.Fatalf("got %d", a.status)
		}
		c, err := e.publisher.GetDevice(t.Context(), "d")
		if err == nil && (len(c.Hashes) != 1 || !pepper.Matches(c.Hashes[0], secret)) {
			err = errors.New("not upgraded")
		}
		return err
	})
	if got := e.metric(`gatehouse_credential_upgrades_total{result="upgraded"}`); got != 1 {
		t.Errorf("%v upgrades, want 1", got)
	}
}
