package policy

import (
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// settleMS is the maximum time, ms, for which the clocks of Redis and the sidecar disagree that a second has ended.
const settleMS = 1000

// lastModified returns the Last-Modified of o, in unix seconds, and whether it identifies the version. It is rounded up
// to when the edge has everything that was written in the second of publishing: two versions of that second have the
// same date (RFC 9110, section 8.8.2.2), and before, a client may have got the version before o. Such a client may know
// no date but its own, of the second in which it asked.
func (e *Engine) lastModified(o *wire.Object) (unix int64, settled bool) {
	unix = (o.PublishedMS+settleMS)/1000 + 1   //mutant:TestModifiedSince o.PublishedMS/1000
	return unix, e.state.InStepMS >= unix*1000 //mutant:TestModifiedSince true
}

// imfFixdate is the format of dates that are sent (RFC 9110, section 5.6.7), in UTC.
const imfFixdate = "Mon, 02 Jan 2006 15:04:05 GMT"

// date formats a time in unix seconds for a header; the result is valid until the next decision.
func (e *Engine) date(unix int64) string {
	return e.compose(time.Unix(unix, 0).UTC().AppendFormat(e.text, imfFixdate))
}

// notModifiedSince reports whether If-Modified-Since, "" for none, makes the answer a 304, when modified is the time of
// the last change in unix seconds (RFC 9110, section 13.1.3). With an invalid date, or one in the future, it returns
// false.
func notModifiedSince(since string, modified, nowMS int64) bool {
	return since != "" && notModified(since, modified, nowMS)
}

//go:noinline
func notModified(since string, modified, nowMS int64) bool {
	for _, form := range [...]string{imfFixdate, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC} {
		t, err := time.Parse(form, since)
		if err != nil {
			continue
		}
		if form[6] == ',' && t.UnixMilli() > nowMS+50*365*24*time.Hour.Milliseconds() {
			t = t.AddDate(-100, 0, 0) // two digits of a year: in the past, if it would be more than 50 years ahead
		}
		return modified <= t.Unix() &&
			t.UnixMilli() <= nowMS //mutant:TestModifiedSince true
	}
	return false
}
