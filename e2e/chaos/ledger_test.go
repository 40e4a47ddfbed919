package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLedger: version 1 was replaced by 2 at 1 s, which was acknowledged at 1.2 s.
func TestLedger(t *testing.T) {
	limits := Limits{MaxStaleness: 3 * time.Second, Slack: time.Second, Converge: 2 * time.Second}
	for _, test := range []struct {
		name    string
		fault   [2]int // from, to; 0: none
		sick    bool
		answers []Read
		want    string
	}{
		{name: "before the change", answers: []Read{{Answer: Hit, Version: 1, Start: at(900), End: at(1100)}}},
		{name: "not acknowledged long ago", answers: []Read{{Answer: Hit, Version: 1, Start: at(3100), End: at(3200)}}},
		{name: "late", answers: []Read{{Answer: Hit, Version: 1, Start: at(3300), End: at(3400)}}, want: "late"},
		{name: "in a fault", fault: [2]int{3000, 3100},
			answers: []Read{{Answer: Hit, Version: 1, Start: at(3300), End: at(3400)}}},
		{name: "in a fault, too old", fault: [2]int{3000, 9000},
			answers: []Read{{Answer: Hit, Version: 1, Start: at(5300), End: at(5400)}}, want: "too old"},
		{name: "the former refused", answers: []Read{{Answer: Refused, Version: 1, Start: at(900), End: at(1100)}}},
		{name: "a good one refused", answers: []Read{{Answer: Refused, Version: 2, Start: at(3300), End: at(3400)}},
			want: "good one refused"},
		{name: "before it was replaced", answers: []Read{{Answer: Refused, Version: 1, Start: at(500), End: at(600)}},
			want: "good one refused"},
		{name: "forgotten", answers: []Read{{Answer: Refused, Version: 3, Start: at(500), End: at(600)}}},
		{name: "as another", answers: []Read{{Answer: WrongBody, Version: 2, Start: at(3300), End: at(3400)}},
			want: "wrong body"},
		{name: "not verified once", answers: []Read{
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4000), End: at(4100)},
			{Answer: Hit, Version: 2, Newest: true, Start: at(4200), End: at(4300)},
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4400), End: at(4500)}}},
		{name: "not verified twice", answers: []Read{
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4000), End: at(4100)},
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4200), End: at(4300)}}, want: "not verified"},
		{name: "while the authority fails", sick: true, answers: []Read{
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4000), End: at(4100)},
			{Answer: Unverified, Version: 2, Newest: true, Start: at(4200), End: at(4300)}}},
	} {
		r := &run{devices: NewChecker(1, limits)}
		l := newLedger(r, authorityRulePrefix, 1, authorityDeviceID, authoritySecret, permissionOf)
		l.good = func(h *history, read *Read) bool { return !h.mayBeOvertaken(read.Version, read.End) }
		l.steady = func(time.Duration) bool { return !test.sick }
		h := &l.devices[0]
		h.endWrite(h.beginWrite(Put, at(100), 0), Acked, at(200))
		h.endWrite(h.beginWrite(Put, at(1000), 0), Acked, at(1200))
		if test.fault[0] > 0 {
			r.devices.BeginFault(at(test.fault[0]), false)
			r.devices.EndFault(at(test.fault[1]))
		}
		var got []string
		for _, read := range test.answers {
			for _, violation := range l.judgeAnswer(&read) {
				got = append(got, violation[0])
			}
		}
		if fmt.Sprint(got) != "["+test.want+"]" {
			t.Errorf("%s: got %s, want [%s]", test.name, strings.Join(got, ", "), test.want)
		}
	}
}
