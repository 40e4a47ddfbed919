package redistest

import (
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// ObjectWriter is a writer of objects that doesn't use package publish: it runs the file script, which is publish's
// write.lua, as the page on the contract tells, and stores keys as it is given them. expiry is in milliseconds, "0" for
// none; fields are names and values in turn.
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
