package follow_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
)

// sent returns the bytes that Redis has sent to all clients.
func (s server) sent(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(
		s.Info(t.Context(), "stats").Val())[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRecordWithoutBounds: somebody writes records by hand, which are far too large. They are not read, and count as
// absent: an earlier version is gone, and the device is unknown.
func TestRecordWithoutBounds(t *testing.T) {
	x := withForger(t)
	x.put(t, "/large")
	x.put(t, "/good")
	if _, err := x.publish.PutDevice(t.Context(), publish.Device{ID: "large", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "all", func() bool {
		return x.f.objects.version("/large") == 1 && x.f.objects.version("/good") == 1 &&
			x.f.credentials.version("large") == 1
	})
	const size = 15 << 20
	for key, field := range map[string]string{keys.ObjectKey("/large"): "body", keys.CredentialKey("large"): "hash"} {
		x.do(t, "HSET", key, field, strings.Repeat("x", size))
	}
	before := x.sent(t)
	x.do(t, "SET", keys.DataEpochKey(), "beef") // everything is read again
	await.Until(t, "the object and the device to be gone", func() bool {
		return x.f.objects.version("/large") == 0 && x.f.credentials.version("large") == 0 && x.f.Connected() &&
			x.f.objects.keptBy(2) > 0
	})
	if got := x.sent(t) - before; got > size/10 {
		t.Errorf("redis sent %d bytes: the records were read", got)
	}
	if x.f.objects.version("/good") != 1 {
		t.Error("the other object is gone, too")
	}
	for _, kind := range []string{"object", "credential"} {
		if got := x.f.count(t, "gatehouse_corrupt_total", "kind", kind, "reason", "limit"); got < 1 {
			t.Errorf("%s: counted %v times, want once", kind, got)
		}
	}
	x.f.stop()
	for _, want := range []string{`kind=object id=/large error="the record takes `,
		`kind=credential id=large error="the record takes `} {
		if !strings.Contains(x.f.log.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// TestFirstReadTakesItsTurn: a sidecar that starts waits while a second sidecar reads all objects, but reads devices at
// once.
func TestFirstReadTakesItsTurn(t *testing.T) {
	s := farServer(t)
	s.put(t, "/a")
	if _, err := s.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	s.do(t, "SET", keys.ResyncKey(), "1", "PX", "60000")
	s.do(t, "CONFIG", "RESETSTAT")
	f := start(t, s)
	await.Until(t, "the device", func() bool { return f.credentials.version("d") == 1 })
	await.Until(t, "the lease to be asked for again", func() bool {
		return regexp.MustCompile(`cmdstat_set:calls=([2-9]|\d\d)`).MatchString(s.Info(t.Context(), "commandstats").Val())
	})
	if f.objects.len() != 0 {
		t.Error("the objects didn't wait")
	}
	s.do(t, "DEL", keys.ResyncKey())
	await.Until(t, "the objects", func() bool { return f.objects.version("/a") == 1 })
	<-f.Synced()
	await.Until(t, "the lease to be given back", func() bool { return s.Exists(t.Context(), keys.ResyncKey()).Val() == 0 })
}
