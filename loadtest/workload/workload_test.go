package workload

import (
	"bytes"
	"strings"
	"testing"
)

func TestNumberedRequests(t *testing.T) {
	for _, w := range []Workload{Objects(12, true), Devices(12)} {
		all := w.Requests("host:1")
		if len(all) != 12 {
			t.Fatalf("%s: got %d requests, want 12", w.Name, len(all))
		}
		for i, request := range all {
			if one := w.At(i).Requests("host:1"); len(one) != 1 || !bytes.Equal(request, one[0]) ||
				bytes.Contains(request, []byte(Number)) {
				t.Errorf("%s: request %d is %q, by itself %q", w.Name, i, request, one)
			}
		}
	}
	if got := string(Objects(12, true).Requests("h")[11]); !strings.HasPrefix(got, "GET "+ObjectPath(11)+" ") ||
		!strings.Contains(got, "\r\nIf-None-Match: "+ObjectETag(11)+"\r\n") {
		t.Errorf("got %q, want it to be for object 11 and its entity-tag", got)
	}
	if got := string(Devices(12).Requests("h")[11]); !strings.Contains(got, "\r\nx-device-id: "+FleetDevice(11)+"\r\n") {
		t.Errorf("got %q, want it to be of device 11", got)
	}
}
