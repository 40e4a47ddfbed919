package edge

import (
	"math/rand/v2"

	"github.com/gatehouse/gatehouse/edge/wire"
)

const (
	// sampleEvery is how many hits one in the report represents, on average. Steps are random, because the order of
	// requests may be periodic.
	sampleEvery = 8
	// maxReport bounds a report, bytes: a few hundred keys.
	maxReport = 32 << 10
	// reportTicks is the number of ticks of a report: one second.
	reportTicks = 1000 / TickMS
	hitsPath    = "/v1/hits"
)

// hits samples answers from shared memory for the sidecar, which chooses the objects to keep. A lost report does no
// harm.
type hits struct {
	ticks  int // since the last report
	skip   int // hits until the next reported hit
	report []byte
}

func (h *hits) sampleHit(key string) {
	if h.skip > 0 {
		h.skip--
		return
	}
	h.skip = rand.IntN(2*sampleEvery - 1) // sampleEvery - 1 on average
	if h.report == nil {
		h.report = wire.BeginHits(nil)
	}
	if len(h.report)+2+len(key) <= maxReport {
		h.report = wire.AppendHit(h.report, key)
	}
}

// sendReport sends the report once per second, unless empty.
func (h *hits) sendReport(v *VM) {
	if h.ticks++; h.ticks < reportTicks || h.report == nil {
		return
	}
	h.ticks = 0
	// Failures of other calls, verifications or fetches, are reported if they matter.
	_, _ = v.callSidecar(Call{Path: hitsPath, Body: h.report}, func([]byte) {})
	h.report = nil
}
