package credential

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/shrink/shrinktest"
	"github.com/gatehouse/gatehouse/verify/credential/credentialtest"
)

// TestRecordsAreGivenBack registers many devices, and removes them in each way.
func TestRecordsAreGivenBack(t *testing.T) {
	const n = 20_000
	id := func(i int) string { return fmt.Sprint("device-", i) }
	tests := map[string]func(v *Verifier){
		"removed": func(v *Verifier) {
			for i := range n {
				v.Remove(id(i))
			}
			v.Apply(contract.Credential{ID: "other", Version: 1, Disabled: true})
		},
		"not in a full resync": func(v *Verifier) {
			v.Shard(0).BeginResync()
			v.Shard(0).EndResync()
		},
		"tombstones expire": func(v *Verifier) {
			for i := range n {
				v.Apply(contract.Credential{ID: id(i), Version: 2, Deleted: true, PublishedMS: time.Now().UnixMilli()})
			}
			time.Sleep(contract.TombstoneLife)
			v.Apply(contract.Credential{ID: "other", Version: 1, Disabled: true})
		},
	}
	for name, empty := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := New(Config{Shards: 1, MaxCost: 14}, new(credentialtest.Memory),
					metrics.New(), slog.New(slog.DiscardHandler))
				v.Shard(0).EndResync()
				shrinktest.GivesBack(t, func() {
					for i := range n {
						v.Apply(contract.Credential{ID: id(i), Version: 1, Disabled: i%2 == 0,
							Hashes: []string{fmt.Sprintf("$2b$04$%053d", i)}})
					}
				}, func() { empty(v) })
				runtime.KeepAlive(v)
			})
		})
	}
}
