package edge

import (
	"errors"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Release is the release of the programs, set by the linker.
var Release = "unknown"

// ingest is one request at the push listener: a batch to apply. The answer is the state record.
type ingest struct {
	vm   *VM
	done bool
}

func (i *ingest) handleHeaders(endOfStream bool) Action {
	var method, path string
	headers, _ := headermap.Parse(i.vm.host.RequestHeaders())
	for _, h := range headers {
		switch h[0] {
		case ":method":
			method = h[1]
		case ":path":
			path = h[1]
		}
	}
	if method != "POST" || path != "/v1/apply" {
		return i.refuseBatch(404, fmt.Sprintf("%s %s: only POST /v1/apply is served here", method, path))
	}
	if endOfStream {
		return i.applyBatch(nil)
	}
	return Pause // the listener's allow_on_headers_stop_iteration still delivers the body
}

// handleBody is called for each part of the body; size is the total so far, in bytes.
func (i *ingest) handleBody(size int, endOfStream bool) Action {
	if i.done {
		return Pause
	}
	if size > limits.MaxBatch {
		return i.refuseBatch(413, fmt.Sprintf("batch of more than %d bytes: send smaller ones", limits.MaxBatch))
	}
	if !endOfStream {
		return Pause
	}
	return i.applyBatch(i.vm.host.RequestBody(size))
}

// applyBatch writes a batch's records if memory has the epoch that the batch replaces. Another sidecar may take over on
// another worker at the same time. Every batch ends with the state, which is written only if no other batch has written
// the state since: the overtaken sidecar always learns of the takeover. The overtaken batch may have overwritten
// records of the new sidecar, so the state is blanked: the new sidecar learns of the loss and pushes everything.
func (i *ingest) applyBatch(body []byte) Action {
	h := i.vm.host
	batch, err := wire.ParseBatch(body)
	if errors.Is(err, wire.ErrLayout) {
		return i.refuseBatch(400, fmt.Sprintf("module %s, from %q: %v", Release, h.RequestHeader("user-agent"), err))
	}
	if err != nil {
		return i.refuseBatch(400, err.Error())
	}
	cas, held, purging := i.hasEpoch(batch.Replaces)
	g := &i.vm.writing
	g.beginBatch()
	defer g.lower()
	wrote := false
	for op := range batch.Ops() {
		if !held {
			break
		}
		if op.Region == wire.RegionState {
			if purging || wire.Purging(op.Record) { // as good as written objects
				if err := g.raise(); err != nil {
					return i.refuseBatch(500, fmt.Sprintf("write state: %v", err))
				}
			}
			if held = h.SetState(op.Record, cas); held {
				cas, held, purging = i.hasEpoch(batch.Epoch)
			}
			continue
		}
		wrote = true
		if err := writeRecord(h, g, op); err != nil {
			return i.refuseBatch(500, fmt.Sprintf("write %s record %d: %v", op.Region, op.Index, err))
		}
	}
	if !held {
		i.vm.count(policy.NoRule, policy.BatchRefused)
		state := h.Record(wire.RegionState, 0)
		if wrote {
			h.SetState(make([]byte, wire.MinRecord), 0)
		}
		return i.sendReply(409, "application/octet-stream", state)
	}
	i.vm.count(policy.NoRule, policy.BatchApplied)
	return i.sendReply(200, "application/octet-stream", h.Record(wire.RegionState, 0))
}

func writeRecord(h Host, g *guardWriter, op wire.Op) error {
	if op.Region == wire.RegionObjects {
		if err := g.raise(); err != nil {
			return err
		}
	}
	return h.SetRecord(op.Region, op.Index, op.Record)
}

// hasEpoch reports whether memory has this epoch, 0 for none, and whether the state has purges. It returns the state's
// compare-and-swap number.
func (i *ingest) hasEpoch(epoch uint64) (cas uint32, held, purging bool) {
	state, cas := i.vm.host.State()
	found, err := wire.RecordEpoch(state, wire.RegionState)
	if err != nil {
		found = 0
	}
	return cas, found == epoch, wire.Purging(state)
}

func (i *ingest) refuseBatch(status int, why string) Action {
	i.vm.count(policy.NoRule, policy.BatchRefused)
	i.vm.host.Warn("gatehouse: push refused: " + why)
	return i.sendReply(status, "text/plain", []byte(why+"\n"))
}

func (i *ingest) sendReply(status int, contentType string, body []byte) Action {
	i.done = true
	i.vm.host.Reply(status, "gatehouse_push", headermap.Append(nil, [][2]string{{"content-type", contentType}}), body)
	return Pause
}
