package policy

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// settleMS is the maximum time, ms, for which the clocks of Redis and the sidecar disagree that a second has ended.
const settleMS = 1000

// lagMS is the maximum time, ms, by which the proxy's Date is behind: Envoy reads the clock twice a second.
const lagMS = 1000

// lastModified returns the Last-Modified of o, valid until the next decision: the publisher's or, if it gives none, the
// time of publishing, "" while that doesn't identify the version. That is rounded up to when the edge has everything
// that was written in the second of publishing: two versions of that second have the same date (RFC 9110, section
// 8.8.2.2), and before, a client may have got the version before o. Such a client may know no date but its own, of the
// second in which it asked. It is sent when no Date is earlier.
func (e *Engine) lastModified(o *wire.Object) string {
	if o.Headers != "" {
		if date := publishedHeader(o, "last-modified"); date != "" {
			return date
		}
	}
	unix := (o.PublishedMS+settleMS)/1000 + 1
	if e.state.InStepMS < unix*1000+lagMS {
		return ""
	}
	return e.compose(time.Unix(unix, 0).UTC().AppendFormat(e.text, imfFixdate))
}

// imfFixdate is the format of dates that are sent (RFC 9110, section 5.6.7), in UTC.
const imfFixdate = "Mon, 02 Jan 2006 15:04:05 GMT"
