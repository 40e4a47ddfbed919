package contract

import (
	"reflect"
	"strings"
	"testing"
)

// deletion is an event of format 1.
const deletion = "1:1,4:beef,1:7,4:o:/a,7:deleted,1:1,9:published,13:1735689600000,7:version,1:3,"

func TestEventGolden(t *testing.T) {
	want := Event{
		Epoch:  "beef",
		Seq:    7,
		Member: ObjectMember("/a"),
		Fields: map[string]string{"version": "3", "published": "1735689600000", "deleted": "1"},
	}
	got, err := ParseEvent(deletion)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseEvent = %+v, %v; want %+v", got, err, want)
	}
	if got := string(AppendEvent(nil, want)); got != deletion {
		t.Errorf("AppendEvent = %q, want %q", got, deletion)
	}
}

func TestEventBinary(t *testing.T) {
	want := Event{Epoch: "0", Seq: 1, Member: CredentialMember("d"), Fields: map[string]string{"": "", "a,1:": "\x00\xff,\r\n3:x"}}
	got, err := ParseEvent(string(AppendEvent(nil, want)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestParseEventRefuses(t *testing.T) {
	const start = "1:1,4:beef,1:7,"
	tests := []struct {
		name, in string
		reason   Reason
		seq      uint64
		text     string
	}{
		{"empty", "", ReasonMalformed, 0, "no length of format"},
		{"other format", "1:3,4:beef,", ReasonFormat, 0, `format "3"`},
		{"epoch upper case", "1:1,4:BEEF,1:7,", ReasonMalformed, 0, `epoch "BEEF"`},
		{"epoch empty", "1:1,0:,1:7,", ReasonMalformed, 0, `epoch ""`},
		{"epoch long", "1:1,65:" + strings.Repeat("a", 65) + ",1:7,", ReasonMalformed, 0, "epoch"},
		{"seq 0", "1:1,1:a,1:0,", ReasonLimit, 0, "seq: 0 is out of 1 to 9007199254740991"},
		{"seq of 2^53", "1:1,1:a,16:9007199254740992,", ReasonLimit, 0, "seq"},
		{"seq of 2^64", "1:1,1:a,20:18446744073709551616,", ReasonLimit, 0, "seq"},
		{"seq with zero", "1:1,1:a,2:07,", ReasonMalformed, 0, `"07"`},
		{"seq with sign", "1:1,1:a,2:+7,", ReasonMalformed, 0, `"+7"`},
		{"no member", start, ReasonMalformed, 7, "no length of member"},
		{"bad member", start + "3:x:y,", ReasonUnknown, 7, `"x:y"`},
		{"field without value", start + "4:o:/a,1:f,", ReasonMalformed, 7, `no length of field "f"`},
		{"field twice", start + "4:o:/a,1:f,0:,1:f,0:,", ReasonConflict, 7, `field "f" twice`},
		{"cut at comma", start + "4:o:/a", ReasonMalformed, 7, "4 are left"},
		{"length over the rest", start + "999999999:o:/a,", ReasonMalformed, 7, "999999999 bytes"},
		{"length of ten digits", start + "1000000000:o:/a,", ReasonMalformed, 7, "no length"},
		{"length negative", start + "-1:o:/a,", ReasonMalformed, 7, `"-1"`},
		{"length with zero", start + "04:o:/a,", ReasonMalformed, 7, `"04"`},
		{"length empty", start + ":o:/a,", ReasonMalformed, 7, `""`},
		{"other end", start + "4:o:/a;", ReasonMalformed, 7, "no comma after member"},
		{"trailing byte", deletion + "\n", ReasonMalformed, 7, "byte 79"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseEvent(test.in)
			if err == nil || ReasonOf(err) != test.reason || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v (reason %q), want reason %q and %q", err, ReasonOf(err), test.reason, test.text)
			}
			if got.Seq != test.seq {
				t.Errorf("seq %d, want %d", got.Seq, test.seq)
			}
		})
	}
}

// TestParseEventTruncated: every prefix of an event is refused; a truncated event is never read as a shorter one.
func TestParseEventTruncated(t *testing.T) {
	whole := map[int]bool{} // ends of field pairs, where a prefix is a valid event
	for _, end := range []string{"4:o:/a,", "7:deleted,1:1,", "13:1735689600000,", "7:version,1:3,"} {
		whole[strings.Index(deletion, end)+len(end)] = true
	}
	for n := range len(deletion) + 1 {
		if _, err := ParseEvent(deletion[:n]); (err == nil) != whole[n] {
			t.Errorf("%q: error %v", deletion[:n], err)
		}
	}
	// In format 2 the digest distinguishes a truncated event from a shorter one.
	for n := range len(chainedDeletion) + 1 {
		_, err := ParseEvent(chainedDeletion[:n])
		if follows := Follows("", chainedDeletion[:n]); follows != (n == len(chainedDeletion)) || follows && err != nil {
			t.Errorf("%q: follows %v, error %v", chainedDeletion[:n], follows, err)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add(deletion)
	f.Add(chainedDeletion)
	f.Add(chainedPut)
	f.Add("1:1,1:a,1:1,3:c:d,0:,2:\x00,,")
	f.Add("1:1,1:a,1:1,3:c:d,999999999:")
	f.Fuzz(func(t *testing.T, payload string) {
		e, err := ParseEvent(payload)
		if err != nil {
			if ReasonOf(err) == "" {
				t.Fatalf("error without a reason: %v", err)
			}
			return
		}
		again, err := ParseEvent(string(AppendEvent(nil, e)))
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("round trip: got %+v, %v; want %+v", again, err, e)
		}
	})
}
