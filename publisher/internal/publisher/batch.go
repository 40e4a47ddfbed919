package publisher

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/strictjson"
)

const (
	// maxLine bounds a line of a batch: a body in base64 or with escapes.
	maxLine = 2 << 20
	// maxLines bounds the lines of a batch, and thereby the results in memory.
	maxLines = 10_000
	// partLines and partBytes bound a part of a batch: the lines written at once. The last line may exceed partBytes.
	partLines, partBytes = 512, 1 << 20
	maxPart              = partBytes + maxLine
	batchTimeout         = 5 * time.Minute
	runTimeout           = 20 * time.Second // of a part: encoding, and Redis

	tooMuch = "the team writes more than its rates allow"
)

// line is a write in a batch.
type line struct {
	Op          string            `json:"op"` // put or delete
	Key         string            `json:"key"`
	ContentType string            `json:"content_type"`
	Body        string            `json:"body"`
	BodyBase64  []byte            `json:"body_base64"`
	TTL         *string           `json:"ttl"`
	Tags        []string          `json:"tags"`
	Status      int               `json:"status"`
	Headers     []contract.Header `json:"headers"`
	ETag        string            `json:"etag"`
	Version     uint64            `json:"version"`
	IfVersion   *uint64           `json:"if_version"`
	IfAbsent    bool              `json:"if_absent"`
}

// lineResult is the outcome of a line.
type lineResult struct {
	Key     string `json:"key,omitempty"`
	Status  int    `json:"status"`
	Version uint64 `json:"version,omitempty"`
	ETag    string `json:"etag,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// batchWrite is a line to be written, or a refused line.
type batchWrite struct {
	op     string
	object publish.Object
	p      *problem
	done   publish.Result

	request publish.Request // with an Idempotency-Key
}

// handleBatch writes the lines of the body in their order, and answers with a line for each.
func (c *call) handleBatch() (int, *problem) {
	if p := c.checkBatchHeaders(); p != nil {
		return c.chargeEmptyBatch(p)
	}
	if p := checkIdempotencyKey(c.r.Header); p != nil {
		return c.chargeEmptyBatch(p)
	}
	ctx, cancel := context.WithTimeout(c.ctx, batchTimeout)
	defer cancel()
	lines := bufio.NewReader(c.r.Body)
	var out bytes.Buffer
	status, n := http.StatusOK, 0
	for more := true; more; {
		var part []batchWrite
		var p *problem
		c.extendDeadlines()
		if part, more, p = c.readPart(ctx, lines, n); p != nil && n == 0 && len(part) == 0 {
			return c.chargeEmptyBatch(p)
		}
		n += len(part)
		gone := c.renewTeam()
		if gone != nil {
			part = nil
		} else {
			gone = c.writePart(ctx, part)
		}
		if p == nil {
			p = gone
		}
		if p != nil { // later lines were not read
			part, more = append(part, batchWrite{p: p}), false
		}
		for i := range part {
			r := part[i].toResult()
			if r.Status >= 300 {
				status = http.StatusMultiStatus
			}
			text, _ := json.Marshal(r) // has only strings and numbers
			out.Write(append(text, '\n'))
		}
		c.releaseBodyTurn()
	}
	if n == 0 {
		c.team.limiter.Allow()
	}
	c.extendDeadlines() // the last part may have waited
	return c.sendBody(status, "application/x-ndjson", out.Bytes())
}

// checkBatchHeaders returns the problem of headers that are not a batch's.
func (c *call) checkBatchHeaders() *problem {
	if p := checkFields(c.r.Header, nil, ""); p != nil {
		return p
	}
	if t, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); t != "application/x-ndjson" {
		return problemf(http.StatusUnsupportedMediaType, "content-type: want application/x-ndjson")
	}
	if c.r.Header.Get("Content-Encoding") != "" {
		return problemf(http.StatusUnsupportedMediaType, "content-encoding: send the body without")
	}
	return nil
}

// chargeEmptyBatch charges a batch without lines as a request.
func (c *call) chargeEmptyBatch(p *problem) (int, *problem) {
	if limited := c.chargeRequest(); limited != nil {
		p = limited
	}
	return 0, p
}

// renewTeam reads the team again from the teams file, since a batch may take minutes. If the token was removed,
// renewTeam returns a problem.
func (c *call) renewTeam() *problem {
	team := c.s.teams.findTeam(c.token)
	if team == nil {
		return problemf(http.StatusUnauthorized, "the token was removed; the rest was not written")
	}
	c.team = team
	return nil
}

// extendDeadlines gives the next part of the body, and the answer, the time of a whole request.
func (c *call) extendDeadlines() {
	control := http.NewResponseController(c.w)
	control.SetReadDeadline(time.Now().Add(bodyTimeout))
	control.SetWriteDeadline(time.Now().Add(answerTimeout + bodyTimeout))
}

// readPart reads the next part, after n lines. more is false at the end of the body. p is the reason why nothing more
// can be read.
func (c *call) readPart(ctx context.Context, lines *bufio.Reader, n int) (part []batchWrite, more bool, p *problem) {
	more = true
	idempotencyKey := c.r.Header.Get(idempotencyHeader)
	for size := 0; more && len(part) < min(partLines, c.team.limiter.Burst()) && size < partBytes; {
		var line []byte
		if line, more, p = c.readLine(ctx, lines, size); p != nil {
			return part, false, p
		}
		size += len(line)
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if n+len(part) == maxLines {
			return part, false, problemf(http.StatusRequestEntityTooLarge, "a batch has at most %d lines", maxLines)
		}
		w := c.parseLine(line)
		if idempotencyKey != "" {
			w.request = c.identifyWrite(idempotencyKey, n+len(part)+1, string(line))
		}
		part = append(part, w)
	}
	return part, more, nil
}

// readLine reads a line of a part of size bytes so far. Before the part becomes large, readLine waits for the request's
// turn: up to this point, a slow client takes no turn. more is false at the end of the body.
func (c *call) readLine(ctx context.Context, lines *bufio.Reader, size int) (line []byte, more bool, p *problem) {
	for {
		piece, err := lines.ReadSlice('\n')
		line = append(line, piece...)
		if size+len(line) >= smallBody && c.free == nil {
			if p := c.takeBodyTurn(ctx, c.maxBodySize(maxPart)); p != nil {
				return nil, false, p
			}
		}
		switch {
		case len(line) > maxLine:
			return nil, false, problemf(http.StatusRequestEntityTooLarge, "a line has more than %d bytes", maxLine)
		case err == nil, errors.Is(err, io.EOF):
			return bytes.TrimRight(line, "\r\n"), err == nil, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, bodyProblem(err)
		}
	}
}

// parseLine reads a line.
func (c *call) parseLine(text []byte) (w batchWrite) {
	var l line
	refuse := func(format string, args ...any) batchWrite {
		w.p = problemf(http.StatusBadRequest, format, args...)
		return w
	}
	err := strictjson.Decode(bytes.NewReader(text), &l)
	if errors.Is(err, strictjson.ErrText) {
		err = fmt.Errorf("%w: want body_base64", err)
	}
	if len(l.Key) > limits.MaxKey { // answer and log don't repeat the key
		err = cmp.Or(err, fmt.Errorf("key: %d bytes, at most %d are allowed", len(l.Key), limits.MaxKey))
		l.Key = ""
	}
	w.op = l.Op
	w.object = publish.Object{
		Key: l.Key, ContentType: l.ContentType, Body: l.BodyBase64, Tags: l.Tags, Status: l.Status, Headers: l.Headers,
		ETag: l.ETag, Version: l.Version, IfAbsent: l.IfAbsent,
	}
	switch {
	case err != nil:
		return refuse("%v", err)
	case l.Op != "put" && l.Op != "delete":
		return refuse("op: %q: want put or delete", l.Op)
	case l.Body != "" && len(l.BodyBase64) > 0:
		return refuse("want one of body and body_base64")
	case l.Op == "delete" && !onlyKey(l):
		return refuse("delete: want op and key only")
	case len(l.Body) > limits.MaxBody || len(l.BodyBase64) > limits.MaxBody:
		w.p = problemf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", limits.MaxBody)
		return w
	}
	if l.Body != "" {
		w.object.Body = []byte(l.Body)
	}
	if l.TTL != nil {
		if w.object.TTL, w.p = parseTTL("ttl", *l.TTL); w.p != nil {
			return w
		}
	}
	if l.IfVersion != nil {
		if w.object.IfVersion = *l.IfVersion; w.object.IfVersion == 0 {
			return refuse("if_version: 0: no object has it; if_absent: true writes if there is none")
		}
	}
	if !c.team.mayWrite(l.Key) {
		w.p = problemf(http.StatusForbidden, "%s: not under a prefix of the team %s", l.Key, c.team.Name)
	}
	return w
}

func onlyKey(l line) bool {
	l.Op, l.Key = "", ""
	empty, _ := json.Marshal(line{})
	got, err := json.Marshal(l)
	return err == nil && bytes.Equal(got, empty)
}

// writePart writes the lines that were not refused, in order. If Redis does not answer, or the rate does not allow more
// within the time of a batch, writePart returns the reason to write nothing more.
func (c *call) writePart(ctx context.Context, part []batchWrite) (gone *problem) {
	if err := c.team.waitForRate(ctx, len(part)); err != nil {
		for i := range part {
			part[i].p = &problem{Status: http.StatusTooManyRequests, Detail: tooMuch}
		}
		gone = &problem{Status: http.StatusTooManyRequests, Detail: "the rest was not read"}
	}
	size := 0
	for _, w := range part {
		size += len(w.object.Body)
	}
	if late := c.writeInTurn(ctx, size, func() { c.writeRuns(ctx, part) }); late != nil {
		for i := range part {
			part[i].p = cmp.Or(part[i].p, late)
		}
		gone = &problem{Status: late.Status, Detail: "the rest was not read"}
	}
	for i := range part {
		w := &part[i]
		operation := w.op
		if operation != "delete" {
			operation = "put" // also for an unknown operation
		}
		c.recordResult(operation, w.object.Key, w.done.Version, w.p)
		if w.p != nil && w.p.Status == http.StatusServiceUnavailable {
			gone = &problem{Status: http.StatusServiceUnavailable, Detail: "the rest was not read"}
		}
	}
	return gone
}

// writeRuns writes the lines that were not refused, in runs of the same operation.
func (c *call) writeRuns(ctx context.Context, part []batchWrite) {
	for i := 0; i < len(part); {
		if part[i].p != nil {
			i++
			continue
		}
		end := i + 1
		for end < len(part) && part[end].p == nil && part[end].op == part[i].op {
			end++
		}
		c.writeRun(ctx, part[i:end])
		i = end
	}
}

// writeRun writes lines of the same operation.
func (c *call) writeRun(ctx context.Context, run []batchWrite) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	ctx = c.withLineRequests(ctx, run)
	var results []publish.Result
	if run[0].op == "put" {
		objects := make([]publish.Object, len(run))
		for i, w := range run {
			objects[i] = w.object
		}
		results = c.s.p.PutAll(ctx, objects)
	} else {
		keys := make([]string, len(run))
		for i, w := range run {
			keys[i] = w.object.Key
		}
		results = c.s.p.DeleteAll(ctx, keys)
	}
	for i, r := range results {
		if run[i].done = r; r.Err != nil {
			run[i].p = asPrecondition(problemOf(r.Err), run[i].object.IfVersion != 0)
		}
	}
}

func (w *batchWrite) toResult() lineResult {
	if w.p != nil {
		return lineResult{Key: w.object.Key, Status: w.p.Status, Detail: w.p.Detail}
	}
	r := lineResult{Key: w.object.Key, Status: http.StatusOK, Version: w.done.Version}
	if w.op == "put" {
		r.ETag = w.object.EntityTag()
	}
	return r
}
