package redistest

import (
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// ObjectWriter returns a writer of objects without package publish. It runs the file script, publish's write.lua, as
// the contract's page describes, and stores keys as they are given. expiry is in milliseconds, "0" for none; fields are
// alternating names and values.
func ObjectWriter(t T, client redis.Scripter, script string, shards contract.Shards) func(key, expiry string, fields ...any) {
	t.Helper()
	source, err := os.ReadFile(script)
	must(t, err)
	return func(key, expiry string, fields ...any) {
		t.Helper()
		k, member := shards.KeysOf(key), contract.ObjectMember(key)
		keys := []string{k.RecordKey(member), k.SeqKey(), k.LogKey(), k.EpochKey(), k.ChainKey()}
		args := append([]any{"replace", "0", "beef", member.String(), expiry, k.EventsChannel(), "PUBLISH", ""}, fields...)
		must(t, client.Eval(t.Context(), string(source), keys, args...).Err())
	}
}
