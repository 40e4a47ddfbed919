package policy

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// settleMS is the maximum time, ms, for which the clocks of Redis and the sidecar disagree about the end of a second.
const settleMS = 1000

// lagMS is the maximum time, ms, by which the proxy's Date is behind: Envoy reads the clock twice a second.
const lagMS = 1000

// lastModified returns the Last-Modified of o, valid until the next decision: the publisher's or, by default, the time
// of publishing; "" while the time doesn't identify the version.
//
// The time of publishing is rounded up until the edge has all writes of the second of publishing: two versions of one
// second have the same date (RFC 9110, section 8.8.2.2), and earlier in the second, a client may have got the version
// before o. Such a client may know its own date only, of the second of its request. So Last-Modified is sent once no
// Date can be earlier.
func (p *responder) lastModified(o *wire.Object) string {
	if o.Headers != "" {
		if date := publishedHeader(o, "last-modified"); date != "" {
			return date
		}
	}
	unix := (o.PublishedMS+settleMS)/1000 + 1
	if p.state.InStepMS < unix*1000+lagMS {
		return ""
	}
	return p.text.compose(time.Unix(unix, 0).UTC().AppendFormat(p.text, imfFixdate))
}

// imfFixdate is the format of dates in headers (RFC 9110, section 5.6.7), in UTC.
const imfFixdate = "Mon, 02 Jan 2006 15:04:05 GMT"
