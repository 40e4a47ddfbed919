package credential

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential/credentialtest"
)

// TestTombstonesEnd deletes devices whose ids don't return: the verifier forgets the ids once Redis has removed the
// tombstones.
func TestTombstonesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := New(Config{Shards: 1}, new(credentialtest.Memory), metrics.New(),
			slog.New(slog.DiscardHandler))
		apply := func(id string, version uint64, deleted bool) {
			v.Apply(contract.Credential{ID: id, Version: version, Deleted: deleted, Disabled: !deleted,
				PublishedMS: time.Now().UnixMilli()})
		}
		records := &v.records // +checklocksignore: nothing is concurrent
		for i := range 100 {
			apply(fmt.Sprint("d", i), 1, false)
			apply(fmt.Sprint("d", i), 2, true)
		}
		time.Sleep(time.Hour)
		apply("d7", 3, false) // exists again
		apply("d8", 3, true)  // is deleted later
		if len(records.all) != 100 {
			t.Errorf("got %d records, want 100: Redis has them still", len(records.all))
		}
		time.Sleep(contract.TombstoneLife - time.Hour)
		if apply("other", 1, false); len(records.all) != 3 || records.all["d7"] == nil || records.all["d8"] == nil {
			t.Errorf("got %d records, want d7, d8 and other", len(records.all))
		}
		time.Sleep(time.Hour)
		if apply("other", 2, false); len(records.all) != 2 || len(records.tombstones) != 0 {
			t.Errorf("got %d records, %d tombstones; want 2 and none", len(records.all), len(records.tombstones))
		}

		// A device again and again, and a device with a time in the future.
		v.Apply(contract.Credential{ID: "ahead", Version: 1, Deleted: true, PublishedMS: 1<<53 - 1})
		for i := range uint64(10 * maxStale) {
			if apply("d7", 4+i, true); len(records.tombstones) > maxStale+4 {
				t.Fatalf("got %d tombstones of 2 devices", len(records.tombstones))
			}
		}
		time.Sleep(contract.TombstoneLife)
		if apply("other", 3, false); len(records.all) != 1 || len(records.tombstones) != 0 {
			t.Errorf("got %d records, %d tombstones; want 1 and none", len(records.all), len(records.tombstones))
		}
	})
}

// TestRefusedRecordsAreNotAllLogged refuses many records, as after a wrong setting: the log is limited.
func TestRefusedRecordsAreNotAllLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := metrics.New()
		v := New(Config{Shards: 1, MaxCost: 4}, new(credentialtest.Memory),
			m, slog.New(slog.NewTextHandler(&log, nil)))
		version := uint64(0)
		refuse := func(n int) {
			for range n {
				version++
				v.Apply(contract.Credential{ID: "d", Version: version, Hashes: []string{"no hash"}})
			}
		}
		refuse(100)
		refuse(1)
		time.Sleep(time.Minute)
		refuse(1)
		if got := strings.Count(log.String(), "level=WARN"); got != 101 {
			t.Errorf("got %d lines, want the first 100, and one later", got)
		}
		if got := metricstest.Value(t, m, "gatehouse_credentials_refused_total"); got != 102 {
			t.Errorf("%v are counted, want all 102", got)
		}
	})
}
