package e2e

import (
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRecordThatCantBeRead writes a device's record again while Redis refuses to show it: the device is good, or not,
// but nobody can know. It gets a 503, no 401, with its right secret and with others, until the record can be read.
func TestRecordThatCantBeRead(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.device("dev", "secret", 4, "telemetry.write")
	e.until("it is authenticated", status(200), "POST /v1/telemetry", credential("dev", "secret")...)
	permit := func(how string) {
		t.Helper()
		if err := e.redis.Do(t.Context(), "ACL", "SETUSER", "default", how+"hgetall").Err(); err != nil {
			t.Fatal(err)
		}
	}
	permit("-")
	e.device("dev", "secret", 4, "telemetry.write")
	seen := map[int]bool{}
	undecided := func(a answer) bool { seen[a.status] = true; return a.status == 503 }
	e.until("it is not decided", undecided, "POST /v1/telemetry", credential("dev", "secret")...)
	e.until("nor with another secret", undecided, "POST /v1/telemetry", credential("dev", "other")...)
	permit("+")
	e.until("it is authenticated again", func(a answer) bool { seen[a.status] = true; return a.status == 200 },
		"POST /v1/telemetry", credential("dev", "secret")...)
	if seen[401] {
		t.Error("the device was refused though nobody knew its record")
	}
}
