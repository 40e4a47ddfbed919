package edgemem_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// TestTooManyDevices: the verifier logs the problem once, when the number of devices is known.
func TestTooManyDevices(t *testing.T) {
	var log bytes.Buffer
	v := credential.New(credential.Config{MaxCost: 14}, edgemem.New(edgemem.Config{Verdicts: 1}), metrics.New(),
		slog.New(slog.NewTextHandler(&log, nil)))
	v.Shard(0).BeginResync()
	for i := range 19 {
		v.Apply(contract.Credential{ID: fmt.Sprint(i), Version: 1, Hashes: []string{"$2b$04$" + strings.Repeat(".", 53)}})
	}
	if log.Len() > 0 {
		t.Errorf("before all are known: %s", log.String())
	}
	v.Shard(0).EndResync()
	v.Apply(contract.Credential{ID: "one more", Version: 1, Hashes: []string{"$2b$04$" + strings.Repeat(".", 53)}})
	v.Shard(0).BeginResync()
	v.Shard(0).EndResync()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") ||
		!strings.Contains(text, "devices=19") || !strings.Contains(text, "16 devices") ||
		!strings.Contains(text, "--memory.verdicts") {
		t.Errorf("got %q, want one warning with 19 devices, the limit of 16 and the setting", text)
	}
}

// TestTeams: a team registers devices with as many, as long permission names as the contract allows, each with its own.
// The devices of another team keep their verdicts and permissions, at each edge.
func TestTeams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgemem.New(edgemem.Config{Verdicts: 4000, Shards: 1})
		edges := []edge{{m, m.AddEdge()}, {m, m.AddEdge()}}
		memories := []*edgememtest.Memory{edgememtest.NewMemory(), edgememtest.NewMemory()}
		v := credential.New(credential.Config{MaxCost: 14, AllowTTL: time.Hour, Shards: 1}, m, metrics.New(),
			slog.New(slog.DiscardHandler))
		v.Shard(0).EndResync()
		register := func(id string, names ...string) {
			t.Helper()
			v.Apply(contract.Credential{ID: id, Version: 1, PublishedMS: 1, Permissions: names,
				Hashes: []string{"$2b$04$" + strings.Repeat(".", 53)}})
			want := strings.Join(names, ",")
			if r := v.VerifySession(id, "1-1"); r.Outcome != wire.Allow || r.Permissions != want {
				t.Fatalf("%s: got %v because of %s, with %q, want %q", id, r.Outcome, r.Reason, r.Permissions, want)
			}
		}
		deliver := func() {
			for i, e := range edges {
				push(t, e, memories[i])
			}
		}
		for i, e := range edges {
			reset(e, memories[i])
		}
		for i := range 1000 {
			register(fmt.Sprint("b", i), "b.read", fmt.Sprint("b.write:", i))
		}
		deliver()
		m.PutObject(new(object("/b", 1, 10)))
		for i := range 2000 {
			names := make([]string, limits.MaxPermissions)
			for n := range names {
				names[n] = fmt.Sprintf("a%0*d", limits.MaxPermissionName-1, i*limits.MaxPermissions+n)
			}
			register(fmt.Sprint("a", i), names...)
		}
		deliver()
		for _, memory := range memories {
			for i := range 1000 {
				want := fmt.Sprint("b.read,b.write:", i)
				if got, err := memory.Session(fmt.Sprint("b", i), "1-1"); err != nil || got.Permissions != want {
					t.Fatalf("b%d: got %q, %v, want %q", i, got.Permissions, err, want)
				}
			}
			if _, err := memory.Object("/b"); err != nil {
				t.Error(err)
			}
			if records, size := memory.Size(); size > 4000*(64+64+100) {
				t.Errorf("%d bytes in %d records", size, records)
			}
		}
	})
}
