package contract

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

func TestKeys(t *testing.T) {
	shop := Keyspace{Namespace: "shop", Database: 1, Shards: 8}
	tests := []struct{ got, want string }{
		{Keys{}.ObjectKey("/a?b=c"), "{gatehouse:0}:o:/a?b=c"},
		{Keys{Shard: 7}.ObjectKey("/a"), "{gatehouse:7}:o:/a"},
		{Keys{}.CredentialKey("dev"), "{gatehouse:0}:c:dev"},
		{Keys{}.RecordKey(CredentialMember("dev")), "{gatehouse:0}:c:dev"},
		{Keys{}.RecordKey(ObjectMember("/a")), "{gatehouse:0}:o:/a"},
		{Keys{}.SeqKey(), "{gatehouse:0}:seq"},
		{Keys{}.LogKey(), "{gatehouse:0}:log"},
		{Keys{}.DataEpochKey(), "{gatehouse:0}:epoch"},
		{Keys{}.ChainKey(), "{gatehouse:0}:chain"},
		{Keys{}.EventsChannel(), "{gatehouse:0}:events"},
		{Keyspace{}.ShardsKey(), "{gatehouse:0}:shards"},
		{Keyspace{}.EdgesKey(), "{gatehouse:0}:edges"},
		{Keyspace{Database: 1}.ShardsKey(), "{gatehouse:0}:shards"},
		{Keyspace{Database: 1}.KeysOf("/a").ObjectKey("/a"), "{gatehouse:0}:o:/a"},
		{Keyspace{Database: 12, Shards: 4}.Keys(3).EventsChannel(), "{gatehouse:3}:events:12"},
		{shop.ShardsKey(), "{gatehouse.shop:0}:shards"},
		{shop.EdgesKey(), "{gatehouse.shop:0}:edges"},
		{shop.KeysOf("thermostat-7").CredentialKey("thermostat-7"), "{gatehouse.shop:2}:c:thermostat-7"},
		{shop.Keys(7).SeqKey(), "{gatehouse.shop:7}:seq"},
		{shop.Keys(7).EventsChannel(), "{gatehouse.shop:7}:events:1"},
		{shop.Keys(63).VerdictLockKey("ab"), "{gatehouse.shop:63}:v:ab:lock"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestNamespace(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "a": true, "0": true, "shop": true, "shop-a": true, "9-": true, strings.Repeat("a", 32): true,
		"-a": false, "-": false, "Shop": false, "a.b": false, "a_b": false, "a:0": false, "a}": false, "*": false,
		"a*": false, "[a]": false, "a ": false, " ": false, "a\n": false, "ä": false, strings.Repeat("a", 33): false,
	} {
		err := Keyspace{Namespace: name}.Check()
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		if err != nil && (ReasonOf(err) != ReasonMalformed || !strings.Contains(err.Error(), "namespace: "+quote(name)) ||
			!strings.Contains(err.Error(), "want 1 to 32 of a-z, 0-9 and -")) {
			t.Errorf("%q: %v, want malformed, the value and what is allowed", name, err)
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

// TestMemberIsACopy retains a member's id, but not the parsed string, which may be an event of some MiB.
func TestMemberIsACopy(t *testing.T) {
	payload := []byte("o:/a")
	m, err := ParseMember(unsafe.String(&payload[0], len(payload)))
	payload[3] = 'b'
	if err != nil || m.ID != "/a" {
		t.Errorf("got %q, %v; want /a", m.ID, err)
	}
}

// TestObjectIsACopy retains nothing of the fields, which a snapshot's reader overwrites with the next record.
func TestObjectIsACopy(t *testing.T) {
	fields, all := maps.Clone(object), [][]byte{}
	fields[FieldTags] = "a,b"
	want, err := ParseObject(fields)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		b := []byte(value)
		fields[name] = unsafe.String(&b[0], len(b))
		all = append(all, b)
	}
	got, err := ParseObject(fields)
	for _, b := range all {
		clear(b)
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}
