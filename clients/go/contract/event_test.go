package contract

import (
	"reflect"
	"strings"
	"testing"
)

func TestEventBinary(t *testing.T) {
	want := Event{DataEpoch: "0", Seq: 1, Digest: firstDigest, Member: CredentialMember("d"),
		Fields: map[string]string{"": "", "a,1:": "\x00\xff,\r\n3:x"}}
	got, err := ParseEvent(string(AppendEvent(nil, want)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestParseEventRefuses(t *testing.T) {
	const chained = "1:2,40:" + firstDigest + ","
	const start, member = chained + "4:beef,1:7,", "4:o:/a,0:,"
	tests := []struct {
		name, in string
		reason   Reason
		seq      uint64
		text     string
	}{
		{"empty", "", ReasonMalformed, 0, "no length of format"},
		{"other format", "1:3,4:beef,", ReasonFormat, 0, `format "3"`},
		{"epoch upper case", chained + "4:BEEF,1:7,", ReasonMalformed, 0, `data epoch "BEEF"`},
		{"epoch empty", chained + "0:,1:7,", ReasonMalformed, 0, `data epoch ""`},
		{"epoch long", chained + "65:" + strings.Repeat("a", 65) + ",1:7,", ReasonMalformed, 0, "epoch"},
		{"seq 0", chained + "1:a,1:0,", ReasonLimit, 0, "seq: 0 is out of 1 to 9007199254740991"},
		{"seq of 2^53", chained + "1:a,16:9007199254740992,", ReasonLimit, 0, "seq"},
		{"seq of 2^64", chained + "1:a,20:18446744073709551616,", ReasonLimit, 0, "seq"},
		{"seq with zero", chained + "1:a,2:07,", ReasonMalformed, 0, `"07"`},
		{"seq with sign", chained + "1:a,2:+7,", ReasonMalformed, 0, `"+7"`},
		{"no member", start, ReasonMalformed, 7, "no length of member"},
		{"bad member", start + "3:x:y,", ReasonUnknown, 7, `"x:y"`},
		{"field without value", start + member + "1:f,", ReasonMalformed, 7, `no length of field "f"`},
		{"field twice", start + member + "1:f,0:,1:f,0:,", ReasonConflict, 7, `field "f" twice`},
		{"cut at comma", start + "4:o:/a", ReasonMalformed, 7, "4 are left"},
		{"length over the rest", start + "999999999:o:/a,", ReasonMalformed, 7, "999999999 bytes"},
		{"length of ten digits", start + "1000000000:o:/a,", ReasonMalformed, 7, "no length"},
		{"length negative", start + "-1:o:/a,", ReasonMalformed, 7, `"-1"`},
		{"length with zero", start + "04:o:/a,", ReasonMalformed, 7, `"04"`},
		{"length empty", start + ":o:/a,", ReasonMalformed, 7, `""`},
		{"other end", start + "4:o:/a;", ReasonMalformed, 7, "no comma after member"},
		{"trailing byte", chainedDeletion + "\n", ReasonMalformed, 7, "byte 126"},
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

// TestParseEventTruncated: a truncated event is refused, or its digest tells.
func TestParseEventTruncated(t *testing.T) {
	for n := range len(chainedDeletion) + 1 {
		_, err := ParseEvent(chainedDeletion[:n])
		if follows := Follows("", chainedDeletion[:n]); follows != (n == len(chainedDeletion)) || follows && err != nil {
			t.Errorf("%q: follows %v, error %v", chainedDeletion[:n], follows, err)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add(chainedDeletion)
	f.Add(chainedPut)
	f.Add("1:2,40:" + firstDigest + ",1:a,1:1,3:c:d,0:,0:,2:\x00,,")
	f.Add("1:2,40:" + firstDigest + ",1:a,1:1,3:c:d,999999999:")
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
