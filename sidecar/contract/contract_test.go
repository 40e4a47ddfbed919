package contract

import (
	"testing"
	"unsafe"
)

func TestKeys(t *testing.T) {
	tests := []struct{ got, want string }{
		{Keys{}.ObjectKey("/a?b=c"), "{gatehouse:0}:o:/a?b=c"},
		{Keys{"7"}.ObjectKey("/a"), "{gatehouse:7}:o:/a"},
		{Keys{}.CredentialKey("dev"), "{gatehouse:0}:c:dev"},
		{Keys{}.RecordKey(CredentialMember("dev")), "{gatehouse:0}:c:dev"},
		{Keys{}.RecordKey(ObjectMember("/a")), "{gatehouse:0}:o:/a"},
		{Keys{}.SeqKey(), "{gatehouse:0}:seq"},
		{Keys{}.LogKey(), "{gatehouse:0}:log"},
		{Keys{}.DataEpochKey(), "{gatehouse:0}:epoch"},
		{Keys{}.ChainKey(), "{gatehouse:0}:chain"},
		{Keys{}.EventsChannel(), "{gatehouse:0}:events"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestParseMember(t *testing.T) {
	tests := []struct {
		in     string
		want   Member
		reason Reason
	}{
		{in: "o:/a", want: Member{'o', "/a"}},
		{in: "o:@dev/a?x", want: Member{'o', "@dev/a?x"}},
		{in: "c:dev:1", want: Member{'c', "dev:1"}},
		{in: "", reason: ReasonMalformed},
		{in: "o", reason: ReasonMalformed},
		{in: "o/a", reason: ReasonMalformed},
		{in: "o:", reason: ReasonMalformed},
		{in: "o:a", reason: ReasonMalformed},
		{in: "o:@d%c3/%C3?a&b", want: Member{'o', "@d%c3/%C3?a&b"}},
		{in: "o:/%c3", reason: ReasonMalformed},
		{in: "o:@d/a?b&a", reason: ReasonMalformed},
		{in: "o:/a?", reason: ReasonMalformed},
		{in: "c:a/b", reason: ReasonMalformed},
		{in: "c:", reason: ReasonMalformed},
		{in: "x:/a", reason: ReasonUnknown},
		{in: "o:/" + string(make([]byte, 2048)), reason: ReasonLimit},
		{in: "c:" + string(make([]byte, 129)), reason: ReasonLimit},
	}
	for _, test := range tests {
		got, err := ParseMember(test.in)
		if ReasonOf(err) != test.reason || got != test.want || (err != nil) != (test.reason != "") {
			t.Errorf("ParseMember(%.40q) = %v, %v; want %v, reason %q", test.in, got, err, test.want, test.reason)
		}
		if err == nil && got.String() != test.in {
			t.Errorf("String() = %q, want %q", got.String(), test.in)
		}
	}
}

// TestMemberIsACopy retains a member's id, but not the string that it was parsed from, which may be an event of some
// MiB.
func TestMemberIsACopy(t *testing.T) {
	payload := []byte("o:/a")
	m, err := ParseMember(unsafe.String(&payload[0], len(payload)))
	payload[3] = 'b'
	if err != nil || m.ID != "/a" {
		t.Errorf("got %q, %v; want /a", m.ID, err)
	}
}
