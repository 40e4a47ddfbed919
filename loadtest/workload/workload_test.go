package workload

import (
	"bytes"
	"strings"
	"testing"
)

func TestNumberedRequests(t *testing.T) {
	for _, w := range []Workload{ObjectReads(12, true), DeviceReads(12)} {
		all := w.Requests("host:1")
		if len(all) != 12 {
			t.Fatalf("%s: got %d requests, want 12", w.Name, len(all))
		}
		for i, request := range all {
			if one := w.RequestAt(i).Requests("host:1"); len(one) != 1 || !bytes.Equal(request, one[0]) ||
				bytes.Contains(request, []byte(NumberPlaceholder)) {
				t.Errorf("%s: request %d is %q, by itself %q", w.Name, i, request, one)
			}
		}
	}
	if got := string(ObjectReads(12, true).Requests("h")[11]); !strings.HasPrefix(got, "GET "+ObjectPath(11)+" ") ||
		!strings.Contains(got, "\r\nIf-None-Match: "+ObjectETag(11)+"\r\n") {
		t.Errorf("got %q, want it to be for object 11 and its entity-tag", got)
	}
	if got := string(DeviceReads(12).Requests("h")[11]); !strings.Contains(got,
		"\r\nx-device-id: "+FleetDevice(11)+"\r\n") {
		t.Errorf("got %q, want it to be of device 11", got)
	}
}
