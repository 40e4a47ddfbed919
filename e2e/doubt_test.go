package e2e

import (
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRecordThatCantBeRead writes a device's record again while Redis refuses to show the record: nobody can know
// whether the device is good. The device gets a 503, no 401, with the right secret and with wrong secrets, until the
// record can be read.
func TestRecordThatCantBeRead(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("it is authenticated", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	permit := func(how string) {
		t.Helper()
		if err := e.redis.Do(t.Context(), "ACL", "SETUSER", "default", how+"hgetall").Err(); err != nil {
			t.Fatal(err)
		}
	}
	permit("-")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	seen := map[int]bool{}
	undecided := func(a answer) bool { seen[a.status] = true; return a.status == 503 }
	e.awaitAnswer("it is not decided", undecided, "POST /v1/telemetry", credential("dev", "secret")...)
	e.awaitAnswer("nor with another secret", undecided, "POST /v1/telemetry", credential("dev", "other")...)
	permit("+")
	e.awaitAnswer("it is authenticated again", func(a answer) bool { seen[a.status] = true; return a.status == 200 },
		"POST /v1/telemetry", credential("dev", "secret")...)
	if seen[401] {
		t.Error("the device was refused though nobody knew its record")
	}
}
