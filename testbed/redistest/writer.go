package redistest

import (
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// ObjectWriter returns a writer of objects without package publish. It runs the file script, publish's write.lua, as
// the contract's page describes, and stores keys as they are given. expiry is in milliseconds, "0" for none; fields are
// alternating names and values.
func ObjectWriter(t T, client redis.Scripter, script string, shards contract.Shards) func(key,
	expiry string, fields ...any) {
	t.Helper()
	write := writer(t, client, script, shards)
	return func(key, expiry string, fields ...any) {
		t.Helper()
		write(contract.ObjectMember(key), expiry, fields)
	}
}

// Writer returns a writer of records of a Redis with one shard, by the same script.
func Writer(t T, client redis.Scripter, script string) func(m contract.Member, fields map[string]string) {
	t.Helper()
	write := writer(t, client, script, 1)
	return func(m contract.Member, fields map[string]string) {
		t.Helper()
		expiry, all := "0", []any{}
		for field, value := range fields {
			all = append(all, field, value)
		}
		if fields[contract.FieldDeleted] != "" {
			expiry = strconv.FormatInt(contract.TombstoneLife.Milliseconds(), 10)
		}
		write(m, expiry, all)
	}
}

func writer(t T, client redis.Scripter, script string, shards contract.Shards) func(m contract.Member,
	expiry string, fields []any) {
	t.Helper()
	source, err := os.ReadFile(script)
	must(t, err)
	run := redis.NewScript(string(source))
	return func(m contract.Member, expiry string, fields []any) {
		t.Helper()
		k := shards.KeysOf(m.ID)
		keys := []string{k.RecordKey(m), k.SeqKey(), k.LogKey(), k.EpochKey(), k.ChainKey()}
		args := append([]any{"replace", "0", "beef", m.String(), expiry, k.EventsChannel(), "PUBLISH", ""}, fields...)
		must(t, run.Run(t.Context(), client, keys, args...).Err())
	}
}
