package contract

import (
	"reflect"
	"strings"
	"testing"
)

// The goldens come from Python's hashlib, since writers exist in other languages.
const (
	firstDigest  = "4aa923dfb271b11dc01c7bf9f1afb80e0c88a931"
	secondDigest = "d9a55bb55bcb089d4d79e09714f4c2ed196a9b37"
	traceparent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	// chainedDeletion begins a chain, chainedPut follows it.
	chainedDeletion = "1:2,40:" + firstDigest +
		",4:beef,1:7,4:o:/a,0:,7:deleted,1:1,9:published,13:1735689600000,7:version,1:3,"
	chainedPut = "1:2,40:" + secondDigest + ",4:beef,1:8,4:o:/a,55:" + traceparent +
		",4:body,3:hi\n,9:body.gzip,3:xyz," +
		`12:content-type,10:text/plain,4:etag,3:"e",9:published,13:1735689600001,7:version,1:4,`
)

func TestChainedEventGolden(t *testing.T) {
	for payload, want := range map[string]Event{
		chainedDeletion: {DataEpoch: "beef", Seq: 7, Digest: firstDigest, Member: ObjectMember("/a"),
			Fields: map[string]string{"version": "3", "published": "1735689600000", "deleted": "1"}},
		chainedPut: {DataEpoch: "beef", Seq: 8, Digest: secondDigest, Member: ObjectMember("/a"), Traceparent: traceparent,
			Fields: map[string]string{"version": "4", "published": "1735689600001", "etag": `"e"`, "content-type": "text/plain",
				"body": "hi\n", "body.gzip": "xyz"}},
	} {
		got, err := ParseEvent(payload)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseEvent = %+v, %v; want %+v", got, err, want)
		}
		if got := string(AppendEvent(nil, want)); got != payload {
			t.Errorf("AppendEvent = %q, want %q", got, payload)
		}
	}
}

func TestFollows(t *testing.T) {
	put := func(old, new string) string {
		t.Helper()
		if !strings.Contains(chainedPut, old) {
			t.Fatalf("no %q to change", old)
		}
		return strings.Replace(chainedPut, old, new, 1)
	}
	tests := []struct {
		name, previous, payload string
		want                    bool
	}{
		{"begins a chain", "", chainedDeletion, true},
		{"next", firstDigest, chainedPut, true},
		{"begins where one is known", firstDigest, chainedDeletion, false},
		{"previous unknown", "", chainedPut, false},
		{"other previous", secondDigest, chainedPut, false},
		{"other digest", firstDigest, put("d9a5", "d9a6"), false},
		{"other epoch", firstDigest, put("4:beef", "4:bee0"), false},
		{"other number", firstDigest, put("1:8,", "1:9,"), false},
		{"other member", firstDigest, put("o:/a", "o:/b"), false},
		{"other kind", firstDigest, put("o:/a", "c:da"), false},
		{"other trace", firstDigest, put("-01", "-00"), false},
		{"other field", firstDigest, put("4:etag", "4:etaG"), false},
		{"other value", firstDigest, put(`"e"`, `"f"`), false},
		{"a field less", firstDigest, put("7:version,1:4,", ""), false},
		{"a field more", firstDigest, chainedPut + "0:,0:,", false},
		{"length of a body", firstDigest, put("3:hi\n", "4:hi\nx"), false},
		{"length of a coding", firstDigest, put("3:xyz", "2:xy"), false},
		{"other body of its length", firstDigest, put("3:hi\n", "3:ho\n"), true}, // the entity-tag reveals that
		{"what begins like a body's name", firstDigest, put("9:body.gzip", "9:bodyxgzip"), false},
		{"cut", firstDigest, chainedPut[:len(chainedPut)-1], false},
		{"another format", "", "1:1" + chainedDeletion[3:], false},
		{"nothing", "", "", false},
	}
	for _, test := range tests {
		if got := Follows(test.previous, test.payload); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
	for previous, want := range map[string]string{"": firstDigest, secondDigest: ""} {
		got, err := Digest(previous, strings.Replace(chainedDeletion, firstDigest, secondDigest, 1)) // another digest
		if err != nil || !ValidDigest(got) || want != "" && got != want || got == secondDigest {
			t.Errorf("digest after %q: %q, %v; want %q", previous, got, err, want)
		}
	}
	if _, err := Digest("", "1:1"+chainedDeletion[3:]); ReasonOf(err) != ReasonFormat {
		t.Errorf("digest of another format: %v, want reason %q", err, ReasonFormat)
	}
}

func TestParseChainedEventRefuses(t *testing.T) {
	start := "1:2,40:" + firstDigest + ",4:beef,1:7,4:o:/a,"
	tests := []struct {
		name, in string
		seq      uint64
		text     string
	}{
		{"digest empty", "1:2,0:,4:beef,1:7,", 0, `digest ""`},
		{"digest short", "1:2,39:" + firstDigest[1:] + ",4:beef,1:7,", 0, "digest"},
		{"digest upper case", "1:2,40:" + strings.ToUpper(firstDigest) + ",4:beef,1:7,", 0, "digest"},
		{"no traceparent", start, 7, "no length of traceparent"},
		{"traceparent of another version", start + "55:01" + traceparent[2:] + ",", 7, "traceparent"},
		{"traceparent long", start + "56:" + traceparent + "0,", 7, "traceparent"},
		{"traceparent upper case", start + "55:" + strings.ToUpper(traceparent) + ",", 7, "traceparent"},
		{"traceparent without a dash", start + "55:" + strings.Replace(traceparent, "-b", "0b", 1) + ",", 7, "traceparent"},
	}
	for _, test := range tests {
		got, err := ParseEvent(test.in)
		if ReasonOf(err) != ReasonMalformed || !strings.Contains(err.Error(), test.text) || got.Seq != test.seq {
			t.Errorf("%s: seq %d, error %v; want seq %d, malformed with %q", test.name, got.Seq, err, test.seq, test.text)
		}
	}
}

func TestLink(t *testing.T) {
	want := Link{1<<53 - 1, firstDigest}
	text := "9007199254740991 " + firstDigest
	if got, err := ParseLink(text); got != want || err != nil || got.String() != text {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "7", "7 ", " " + firstDigest, "0 " + firstDigest, "07 " + firstDigest,
		"7  " + firstDigest,
		"7 " + firstDigest + " ", "7 " + strings.ToUpper(firstDigest), "9007199254740992 " + firstDigest} {
		if got, err := ParseLink(bad); ReasonOf(err) == "" || got != (Link{}) {
			t.Errorf("%q: got %+v, %v; want an error", bad, got, err)
		}
	}
	for seq, want := range map[uint64]string{1: "1", 65535: "65535", 65536: "0", 1<<53 - 1: "65535"} {
		if got := ChainField(seq); got != want {
			t.Errorf("field of %d: %s, want %s", seq, got, want)
		}
	}
}

// FuzzFollows: an event that follows in the chain can't be changed into a different event that also follows, except in
// its bodies.
func FuzzFollows(f *testing.F) {
	f.Add(chainedPut, chainedPut)
	f.Add(chainedPut, chainedDeletion)
	f.Add(chainedPut, strings.Replace(chainedPut, "xyz", "abc", 1))
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, payload := range []string{a, b} {
			digest, err := Digest(firstDigest, payload)
			if err != nil {
				if ReasonOf(err) == "" {
					t.Fatalf("error without a reason: %v", err)
				}
				continue
			}
			if e, err := ParseEvent(payload); err == nil && (e.Digest == digest) != Follows(firstDigest, payload) {
				t.Fatalf("%q: states %q, digest %q, follows %v", payload, e.Digest, digest, !(e.Digest == digest))
			}
		}
		x, errA := ParseEvent(a)
		y, errB := ParseEvent(b)
		if errA != nil || errB != nil || !Follows(firstDigest, a) || !Follows(firstDigest, b) || x.Digest != y.Digest {
			return
		}
		for _, e := range []Event{x, y} {
			for field, value := range e.Fields {
				if isBody(field) {
					e.Fields[field] = strings.Repeat("x", len(value))
				}
			}
		}
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("one digest of two events: %+v, %+v", x, y)
		}
	})
}
