package publisher

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/edge/entitytag"
	"github.com/gatehouse/gatehouse/internal/strictjson"
)

// headerPrefix begins the names of request headers for an object's own headers.
const headerPrefix = "Gatehouse-Header-"

// putFields are a PUT's further headers for Gatehouse, in the form of [http.CanonicalHeaderKey].
var putFields = []string{
	"Gatehouse-Device", "Gatehouse-Etag", "Gatehouse-Host", "Gatehouse-Language", "Gatehouse-Status", "Gatehouse-Tags",
	"Gatehouse-Ttl", "Gatehouse-Version", "Gatehouse-Virtual-Host",
}

// methodPurge deletes a single object, as in Varnish and Fastly.
const methodPurge = "PURGE"

// written is the answer to a write.
type written struct {
	Key     string `json:"key"`
	Version uint64 `json:"version"`
	ETag    string `json:"etag,omitempty"`
}

// handleObject answers a request for a single object, unless limited is a problem.
func (c *call) handleObject(path string, limited *problem) (int, *problem) {
	key, malformed := c.keyOf(path)
	operation := map[string]string{
		http.MethodGet: "get", http.MethodHead: "get", http.MethodPut: "put", http.MethodDelete: "delete",
		methodPurge: "delete",
	}[c.r.Method]
	handler := map[string]func(context.Context, string) (int, *problem){
		http.MethodGet: c.getObject, http.MethodHead: c.getObject, http.MethodPut: c.putObject,
		http.MethodDelete: c.deleteObject, methodPurge: c.deleteObject,
	}[c.r.Method]
	return c.allowMethods(http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, methodPurge)(
		func() (status int, p *problem) {
			ctx, cancel := context.WithTimeout(c.ctx, bodyTimeout+redisTimeout+2*turnTimeout)
			defer cancel()
			switch wrong := checkFields(c.r.Header, putFields, headerPrefix); {
			case limited != nil:
				p = limited
			case malformed != nil:
				p = malformed
			case !c.team.mayWrite(key):
				p = problemf(http.StatusForbidden, "%s: not under a prefix of the team %s", key, c.team.Name)
			case wrong != nil: // perhaps meant to name a different object
				p = wrong
			case checkIdempotencyKey(c.r.Header) != nil:
				p = checkIdempotencyKey(c.r.Header)
			default:
				status, p = handler(ctx, key)
			}
			if p != nil || operation == "get" {
				c.recordResult(operation, key, 0, p)
			}
			return status, p
		})
}

// getObject answers with an object: the body, and the fields in PUT's headers.
func (c *call) getObject(ctx context.Context, key string) (int, *problem) {
	o, p := c.readObject(ctx, key)
	if p != nil {
		return 0, p
	}
	h := c.w.Header()
	h.Set("ETag", o.ETag)
	h.Set("Gatehouse-Version", strconv.FormatUint(o.Version, 10))
	if match := c.r.Header.Values("If-Match"); len(match) > 0 {
		if p := checkIfMatch(match, o.ETag); p != nil {
			return 0, p
		}
	}
	if match := strings.Join(c.r.Header.Values("If-None-Match"), ","); match != "" &&
		entitytag.InList(match, o.ETag, true) {
		c.w.WriteHeader(http.StatusNotModified)
		return http.StatusNotModified, nil
	}
	if o.TTLMS > 0 {
		h.Set("Gatehouse-TTL", o.TTL().String())
	}
	if len(o.Tags) > 0 {
		h.Set("Gatehouse-Tags", strings.Join(o.Tags, ", "))
	}
	if o.Status != 0 {
		h.Set("Gatehouse-Status", strconv.Itoa(o.Status))
	}
	for _, header := range o.Headers.List() {
		h.Add(headerPrefix+header.Name, header.Value)
	}
	return c.sendBody(http.StatusOK, o.ContentType, o.Bodies[0].Bytes)
}

// readObject reads the object at key in the request's turn, and charges the object's bytes to the team.
func (c *call) readObject(ctx context.Context, key string) (contract.Object, *problem) {
	free, p := takeTurns(ctx, 1, c.team.turns.reads, c.s.turns.reads)
	if p != nil {
		return contract.Object{}, p
	}
	defer free()
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	o, err := c.s.p.Get(ctx, key)
	for _, body := range o.Bodies {
		c.chargeBytes("read", len(body.Bytes))
	}
	if err != nil {
		return o, problemOf(err)
	}
	return o, nil
}

// putObject stores the object described by the request.
func (c *call) putObject(ctx context.Context, key string) (status int, p *problem) {
	o, p := parsePutHeaders(c.r.Header)
	if p != nil {
		return 0, p
	}
	o.Key = key
	if o.Body, p = c.readBody(ctx, limits.MaxBody); p != nil {
		return 0, p
	}
	if late := c.writeInTurn(ctx, len(o.Body), func() { status, p = c.storeObject(ctx, o) }); late != nil {
		return 0, late
	}
	return status, p
}

// storeObject writes the object of a put.
func (c *call) storeObject(ctx context.Context, o publish.Object) (status int, p *problem) {
	key := o.Key
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	ctx = c.withRequest(ctx, "put", key, o.Body)
	receipt, err := c.s.p.Repeated(ctx, key) // the condition of a repeated write doesn't hold any more
	conditional := false
	if errors.Is(err, publish.ErrNotFound) {
		if conditional, o.IfVersion, o.IfAbsent, p = c.readCondition(ctx, key); p != nil {
			return 0, p
		}
		receipt, err = c.s.p.Put(ctx, o)
	}
	if err != nil {
		return 0, asPrecondition(problemOf(err), conditional)
	}
	c.recordResult("put", key, receipt.Version, nil)
	c.w.Header().Set("ETag", o.EntityTag())
	c.w.Header().Set("Gatehouse-Version", strconv.FormatUint(receipt.Version, 10))
	status = http.StatusOK
	if c.r.Header.Get("If-None-Match") != "" || receipt.Version == 1 {
		status = http.StatusCreated
	}
	return c.sendJSON(status, written{key, receipt.Version, o.EntityTag()})
}

// deleteObject deletes an object. A missing object gets a tombstone, too.
func (c *call) deleteObject(ctx context.Context, key string) (int, *problem) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	own, p := ownVersion(c.r.Header)
	if p != nil {
		return 0, p
	}
	ctx = c.withRequest(ctx, "delete", key, nil)
	receipt, err := c.s.p.Repeated(ctx, key)
	repeated := !errors.Is(err, publish.ErrNotFound)
	var conditional, absent bool
	var version uint64
	if !repeated {
		conditional, version, absent, p = c.readCondition(ctx, key)
	}
	remove := c.s.p.Delete
	switch {
	case p != nil:
		return 0, p
	case own != 0 && (conditional || absent):
		return 0, problemf(http.StatusBadRequest, "want one of Gatehouse-Version and a condition at most")
	case absent:
		return 0, problemf(http.StatusBadRequest, "If-None-Match: there is nothing to delete then")
	case conditional:
		remove = c.s.p.DeleteIf
	default:
		version = own
	}
	if !repeated {
		receipt, err = remove(ctx, key, version)
	}
	if err != nil {
		return 0, asPrecondition(problemOf(err), conditional)
	}
	c.recordResult("delete", key, receipt.Version, nil)
	return c.sendJSON(http.StatusOK, written{Key: key, Version: receipt.Version})
}

// readCondition reads the conditions of a write: the required version of the object, or absence.
func (c *call) readCondition(ctx context.Context, key string) (conditional bool, version uint64, absent bool,
	p *problem) {
	match, none := c.r.Header.Values("If-Match"), c.r.Header.Values("If-None-Match")
	switch {
	case len(none) > 0 && (len(none) > 1 || none[0] != "*"):
		return true, 0, false, problemf(http.StatusBadRequest, "If-None-Match: want *")
	case len(none) > 0 && len(match) > 0:
		return true, 0, false, problemf(http.StatusPreconditionFailed, "If-Match and If-None-Match: * exclude each other")
	case len(none) > 0:
		return true, 0, true, nil
	case len(match) == 0:
		return false, 0, false, nil
	}
	o, p := c.readObject(ctx, key)
	if p != nil && p.Status == http.StatusNotFound {
		return true, 0, false, problemf(http.StatusPreconditionFailed, "If-Match: there is no object")
	}
	if p != nil {
		return true, 0, false, p
	}
	if p := checkIfMatch(match, o.ETag); p != nil {
		return true, 0, false, p
	}
	return true, o.Version, false, nil
}

// checkIfMatch returns a problem if no line of If-Match has the object's entity-tag.
func checkIfMatch(match []string, etag string) *problem {
	if entitytag.InList(strings.Join(match, ","), etag, false) {
		return nil
	}
	return problemf(http.StatusPreconditionFailed, "If-Match: the object's entity-tag is %s", etag)
}

// asPrecondition returns p. After a conditional write, a conflict with a concurrent write becomes a failed
// precondition.
func asPrecondition(p *problem, conditional bool) *problem {
	if conditional && p.Status == http.StatusConflict {
		p.Status = http.StatusPreconditionFailed
	}
	return p
}

// parsePutHeaders reads the headers of a put.
func parsePutHeaders(h http.Header) (o publish.Object, p *problem) {
	if h.Get("Content-Range") != "" {
		return o, problemf(http.StatusBadRequest, "content-range: an object is put whole")
	}
	o.ContentType, o.ETag = h.Get("Content-Type"), h.Get("Gatehouse-ETag")
	var err error
	if ttl := h.Get("Gatehouse-TTL"); ttl != "" {
		if o.TTL, p = parseTTL("Gatehouse-TTL", ttl); p != nil {
			return o, p
		}
	}
	if tags := strings.Join(h.Values("Gatehouse-Tags"), ","); tags != "" {
		for tag := range strings.SplitSeq(tags, ",") {
			o.Tags = append(o.Tags, strings.TrimSpace(tag))
		}
	}
	if status := h.Get("Gatehouse-Status"); status != "" {
		if o.Status, err = strconv.Atoi(status); err != nil {
			return o, problemf(http.StatusBadRequest, "Gatehouse-Status: %q: want a number", status)
		}
	}
	if o.Version, p = ownVersion(h); p != nil {
		return o, p
	}
	for name, values := range h {
		if name, found := strings.CutPrefix(name, headerPrefix); found {
			for _, value := range values {
				o.Headers = append(o.Headers, contract.Header{Name: strings.ToLower(name), Value: value})
			}
		}
	}
	slices.SortStableFunc(o.Headers, func(a, b contract.Header) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
}

// parseTTL parses an object's time to live. 0 is refused, since 0 could mean for ever: without TTL, objects don't
// expire.
func parseTTL(name, text string) (time.Duration, *problem) {
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl <= 0 || ttl%time.Millisecond != 0 {
		return 0, problemf(http.StatusBadRequest, "%s: %q: want a time such as 10m or 90s, in whole milliseconds, 1ms at "+
			"least; leave it out for fresh until changed", name, text)
	}
	return ttl, nil
}

// checkFields returns the problem of an unknown, empty or repeated header for Gatehouse: an object for a single device
// must not become an object for all devices. known and prefix give the known names. Misspelt names are unknown in any
// form: net/http canonicalizes names, but leaves gatehouse_device as Gatehouse_device.
func checkFields(h http.Header, known []string, prefix string) *problem {
	for name, values := range h {
		switch {
		case !strings.HasPrefix(name, "Gatehouse"), prefix != "" && strings.HasPrefix(name, prefix):
		case len(known) == 0:
			return problemf(http.StatusBadRequest, "%s: this request has no headers for Gatehouse", name)
		case !slices.Contains(known, name):
			return problemf(http.StatusBadRequest, "%s: want one of %s, or %sNAME", name, strings.Join(known, ", "), prefix)
		case len(values) > 1 && name != "Gatehouse-Tags" || values[0] == "":
			return problemf(http.StatusBadRequest, "%s: want one value, or no such header", name)
		}
	}
	return nil
}

// ownVersion returns the object's version from the request, 0 for the next version.
func ownVersion(h http.Header) (uint64, *problem) {
	text := h.Get("Gatehouse-Version")
	if text == "" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil || version > limits.MaxOwnVersion {
		return 0, problemf(http.StatusBadRequest, "Gatehouse-Version: %q: want a number up to 2^52", text)
	}
	return version, nil
}

// purgeRequest is the body of a request to purge.
type purgeRequest struct {
	Tag         string  `json:"tag"`
	Prefix      string  `json:"prefix"`
	All         bool    `json:"all"`
	VirtualHost *string `json:"virtual_host"`
	Soft        bool    `json:"soft"`
}

// handlePurge purges by tag or prefix, or everything of a virtual host.
func (c *call) handlePurge() (int, *problem) {
	if p := checkFields(c.r.Header, nil, ""); p != nil {
		return 0, p
	}
	body, p := c.readBody(c.ctx, 4<<10)
	if p != nil {
		return 0, p
	}
	var request purgeRequest
	if err := strictjson.Decode(bytes.NewReader(body), &request); err != nil {
		return 0, problemf(http.StatusBadRequest, "%v", err)
	}
	if request.All {
		if request.Prefix != "" {
			return 0, problemf(http.StatusBadRequest, "want one of tag, prefix and all")
		}
		request.Prefix = "/"
	}
	u := publish.Purge{Tag: request.Tag, Prefix: request.Prefix, Soft: request.Soft}
	if request.VirtualHost != nil {
		if u.VirtualHost = *request.VirtualHost; u.VirtualHost == "" {
			return 0, problemf(http.StatusBadRequest, "virtual_host: want a name, or no such field")
		}
	}
	id, err := u.ID()
	if err != nil {
		return 0, problemOf(err)
	}
	if p = checkIdempotencyKey(c.r.Header); p != nil {
		// nothing is written
	} else if !c.team.mayPurge(u) {
		p = problemf(http.StatusForbidden, "%s: not under a prefix, and no tag, of the team %s", id, c.team.Name)
	} else if u.Prefix != "" && !c.team.purges.Allow() {
		p = &problem{Status: http.StatusTooManyRequests, retry: time.Second / prefixesRate,
			Detail: "the team purges too many prefixes: want tags"}
	}
	if p == nil {
		ctx, cancel := context.WithTimeout(c.ctx, redisTimeout)
		defer cancel()
		if _, err := c.s.p.Purge(c.withRequest(ctx, "purge", id, body), u); err != nil {
			p = problemOf(err)
		}
	}
	if c.recordResult("purge", id, 0, p); p != nil {
		return 0, p
	}
	return c.sendJSON(http.StatusOK, struct {
		Purged string `json:"purged"`
		Soft   bool   `json:"soft"`
	}{id, u.Soft})
}
