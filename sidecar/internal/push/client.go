package push

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/version"
)

const (
	// pushTimeout bounds a push: while one worker of nginx hangs, no push reaches the other workers.
	pushTimeout = 10 * time.Second
	// maxAnswer bounds the bytes of an answer that are read; a state record has at most some 21 KiB.
	maxAnswer = 64 << 10
)

// client calls an edge's push listener over one persistent connection.
type client struct {
	http      http.Client
	transport *http.Transport
}

func newClient(socket string) *client {
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dialSocket(ctx, socket) },
		MaxConnsPerHost:    1,
		DisableCompression: true,
	}
	return &client{http.Client{Transport: transport}, transport}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// conflictError means that the edge's memory has another epoch than the batch.
type conflictError struct {
	state *wire.State // of the memory; nil if it is empty
}

func (e *conflictError) Error() string {
	if e.state == nil {
		return "the edge's memory is empty"
	}
	return "the edge's memory is of epoch " + formatEpoch(e.state.Epoch)
}

// refusedError means that the edge refused a batch as malformed.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string {
	text := fmt.Sprintf("the edge answered %d %q", e.status, e.text)
	if e.status == http.StatusRequestEntityTooLarge {
		text += fmt.Sprintf(": per_connection_buffer_limit_bytes of the push listener (nginx: client_max_body_size) must be "+
			"at least %d", limits.MaxBatch)
	}
	return text
}

// sendBatch pushes a batch. If the edge closes the connection without an answer, because the connection was idle or a
// worker of nginx has ended, nobody applies the batch any more, and the applied part can be applied again. So the batch
// is sent once more, as long as its epoch lasts. A batch that timed out is not sent again, because the edge might still
// apply the first copy later.
func (c *client) sendBatch(ctx context.Context, batch []byte) error {
	_, err := c.postBatch(ctx, batch)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) {
		_, err = c.postBatch(ctx, batch)
	}
	return err
}

// readState returns the edge's state, nil if there is none. It sends an empty batch under a random epoch.
func (c *client) readState(ctx context.Context) (*wire.State, error) {
	var b [8]byte
	rand.Read(b[:]) // never fails
	nobodys := binary.LittleEndian.Uint64(b[:]) | 1
	state, err := c.postBatch(ctx, wire.BeginBatch(nil, nobodys, nobodys))
	if conflict, ok := err.(*conflictError); ok {
		return conflict.state, nil
	}
	return state, err
}

func (c *client) postBatch(ctx context.Context, batch []byte) (*wire.State, error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gatehouse-push/v1/apply",
		bytes.NewReader(batch))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	request.Header.Set("User-Agent", "gatehouse-sidecar/"+version.Name()) // for the edge's message on an unknown layout
	response, err := c.http.Do(request)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("timeout: no answer within %v: %w", pushTimeout, err)
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusConflict:
	default:
		text := strings.TrimSpace(string(answer[:min(len(answer), 300)]))
		return nil, &refusedError{response.StatusCode, text}
	}
	var state *wire.State
	if len(answer) > 0 {
		// A malformed state counts as no state, except for the epoch: we take over from that epoch.
		if s, err := wire.ParseState(answer); err == nil {
			state = &s
		} else if epoch, err := wire.RecordEpoch(answer, wire.RegionState); err == nil {
			state = &wire.State{Epoch: epoch}
		}
	}
	if response.StatusCode == http.StatusConflict {
		return nil, &conflictError{state}
	}
	return state, nil
}
