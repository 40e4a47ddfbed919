package follow

import (
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// TestOverflow: the events of devices that arrived since the last look survive an overflow.
func TestOverflow(t *testing.T) {
	in := newInbox(64)
	event := func(m contract.Member, size int) string {
		fields := map[string]string{contract.FieldBody: strings.Repeat("x", size)}
		e := contract.Event{Epoch: "beef", Seq: 1, Digest: strings.Repeat("0", 40), Member: m, Fields: fields}
		return string(contract.AppendEvent(nil, e))
	}
	in.put(event(contract.CredentialMember("seen"), 1))
	in.unseen()
	late := event(contract.CredentialMember("late"), 1)
	in.put(late)
	for !in.lost {
		in.put(event(contract.ObjectMember("/a"), 1<<20))
	}
	if got := in.unseen(); len(got) != 1 || got[0] != late {
		t.Errorf("got %d events after an overflow, want that of the device", len(got))
	}
	for range 3 * in.most >> 20 {
		in.put(event(contract.CredentialMember("late"), 1<<20))
	}
	if in.bytes > in.most {
		t.Errorf("got %d bytes, want at most %d", in.bytes, in.most)
	}
}

// TestEmptyPayloadsAreBounded: they take memory, too.
func TestEmptyPayloadsAreBounded(t *testing.T) {
	in := newInbox(64)
	for range in.most {
		if in.put(""); in.lost {
			return
		}
	}
	t.Errorf("%d empty payloads wait, want a bound", len(in.payloads))
}
