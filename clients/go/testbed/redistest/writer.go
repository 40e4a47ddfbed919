package redistest

import (
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// Writer returns a function that writes records to a Redis with one shard, without package publish. The function runs
// the file script, publish's write.lua, as the contract's page describes.
func Writer(t T, client redis.Scripter, script string) func(m contract.Member, fields map[string]string) {
	t.Helper()
	source, err := os.ReadFile(script)
	require.NoError(t, err)
	run := redis.NewScript(string(source))
	return func(m contract.Member, fields map[string]string) {
		t.Helper()
		expiry := "0"
		if fields[contract.FieldDeleted] != "" {
			expiry = strconv.FormatInt(contract.TombstoneLife.Milliseconds(), 10)
		}
		k := contract.Keys{}
		keys := []string{k.RecordKey(m), k.SeqKey(), k.LogKey(), k.DataEpochKey(), k.ChainKey()}
		args := []any{"replace", "0", "beef", m.String(), expiry, k.EventsChannel(), "PUBLISH", ""}
		for field, value := range fields {
			args = append(args, field, value)
		}
		require.NoError(t, run.Run(t.Context(), client, keys, args...).Err())
	}
}
