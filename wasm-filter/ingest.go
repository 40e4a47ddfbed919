package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

// maxBatch bounds a batch, bytes. The sidecar's are far smaller; the largest holds one body.
const maxBatch = 2 << 20

// ingest is one request at the push listener: it applies a batch and answers with the
// state record.
type ingest struct {
	types.DefaultHttpContext
	vm   *vm
	done bool
}

// OnHttpRequestHeaders implements types.HttpContext.
func (i *ingest) OnHttpRequestHeaders(_ int, endOfStream bool) types.Action {
	var method, path string
	for _, h := range i.vm.host.requestHeaders() {
		switch h[0] {
		case ":method":
			method = h[1]
		case ":path":
			path = h[1]
		}
	}
	if method != "POST" || path != "/v1/apply" {
		return i.refuse(404, fmt.Sprintf("%s %s: only POST /v1/apply is served here", method, path))
	}
	if endOfStream {
		return i.apply(nil)
	}
	return types.ActionPause // the listener's allow_on_headers_stop_iteration lets the body come
}

// OnHttpRequestBody implements types.HttpContext.
func (i *ingest) OnHttpRequestBody(size int, endOfStream bool) types.Action {
	if i.done {
		return types.ActionPause
	}
	if size > maxBatch { // size is of the body so far, bytes
		return i.refuse(413, fmt.Sprintf("batch of more than %d bytes: send smaller ones", maxBatch))
	}
	if !endOfStream {
		return types.ActionPause
	}
	return i.apply(i.vm.host.requestBody(size))
}

// apply writes a batch's records if memory holds the batch's epoch, or the batch takes over.
func (i *ingest) apply(body []byte) types.Action {
	h := i.vm.host
	batch, err := wire.ParseBatch(body)
	if err != nil {
		return i.refuse(400, err.Error())
	}
	state := h.record(wire.RegionState, 0)
	if epoch, err := wire.RecordEpoch(state, wire.RegionState); !batch.Takeover && (err != nil || epoch != batch.Epoch) {
		i.vm.count(policy.BatchRefused)
		return i.reply(409, "application/octet-stream", state)
	}
	for op := range batch.Ops() {
		if err := h.setRecord(op.Region, op.Index, op.Record); err != nil {
			return i.refuse(500, fmt.Sprintf("write %s record %d: %v", op.Region, op.Index, err))
		}
	}
	i.vm.count(policy.BatchApplied)
	return i.reply(200, "application/octet-stream", h.record(wire.RegionState, 0))
}

func (i *ingest) refuse(status int, why string) types.Action {
	i.vm.count(policy.BatchRefused)
	i.vm.host.warn("gatehouse: push refused: " + why)
	return i.reply(status, "text/plain", []byte(why+"\n"))
}

func (i *ingest) reply(status int, contentType string, body []byte) types.Action {
	i.done = true
	if err := i.vm.host.reply(status, [][2]string{{"content-type", contentType}}, body); err != nil {
		i.vm.host.warn("gatehouse: local reply: " + err.Error())
	}
	return types.ActionPause
}
