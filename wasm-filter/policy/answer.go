package policy

import (
	"errors"
	"strconv"
	"unsafe"

	"github.com/gatehouse/gatehouse/wire"
)

// The Cache-Status (RFC 9211) of what goes upstream, and of a hit.
const (
	forwarded           = "gatehouse; fwd="
	statusMethod        = forwarded + "method"
	statusBypass        = forwarded + "bypass"
	statusCrowded       = forwarded + "bypass; detail=crowded"
	statusNotAcceptable = forwarded + "bypass; detail=not-acceptable"
	statusNoState       = forwarded + "stale; detail=no-state"
	statusNotInStep     = forwarded + "stale; detail=not-in-step"
	statusExpired       = forwarded + "stale; detail=expired"
	statusMiss          = forwarded + "uri-miss"
	statusFetchFailed   = forwarded + "uri-miss; detail=fetch-failed"
	statusHit           = "gatehouse; hit"
)

// maxAcceptEncoding bounds an Accept-Encoding that is taken apart, bytes.
const maxAcceptEncoding = 512

// answer fills in the cache's part of a decision that would otherwise pass.
func (e *Edge) answer(d *Decision, nowMS int64, rule *Rule, r *Request, mem Memory, answers *Answers) {
	if r.Method != "GET" && r.Method != "HEAD" {
		d.pass(CacheBypass, statusMethod)
		return
	}
	key, ok := e.key(r, rule.Cache, d.Device)
	if !ok || r.ifMatch || r.grpc || len(r.acceptEncoding) > maxAcceptEncoding {
		d.pass(CacheBypass, statusBypass)
		return
	}
	if e.state.Epoch == 0 {
		d.Outdated = true
		d.pass(CacheStale, statusNoState)
		return
	}
	stale := !e.recent(nowMS, e.state.InStepMS)
	if stale && !e.config.ServeStale {
		d.pass(CacheStale, statusNotInStep)
		return
	}
	source := source{mem: mem, fetched: answers.Fetch}
	o, err := source.find(&e.state, key)
	if err == nil && o.TTLMS != 0 && nowMS >= o.PublishedMS+int64(o.TTLMS) {
		err = errExpired
	}
	if err == nil {
		err = e.serve(d, nowMS, rule, r, &source, o)
	}
	switch {
	case err == nil && stale:
		d.Cache = CacheStaleServed
		d.Headers[cacheStatusAt][1] += "; detail=not-in-step"
	case err == nil:
		d.Key = key
	case errors.Is(err, errNotAcceptable):
		d.pass(CacheBypass, statusNotAcceptable)
	case rule.Cache.Fetch && !wire.ValidKey(key): // nobody can have published it
		d.pass(CacheBypass, statusBypass)
	case rule.Cache.Fetch && answers.Fetch == nil:
		d.Action, d.Key, d.Cache, d.Outdated = Fetch, key, CacheFetch, d.Outdated || outdated(err)
	case errors.Is(err, errExpired):
		d.pass(CacheStale, statusExpired)
	case source.failed():
		d.pass(CacheMiss, statusFetchFailed)
	default:
		d.Outdated = d.Outdated || outdated(err)
		d.pass(CacheMiss, statusMiss)
	}
}

// Withhold makes d, if it is an answer from the cache with a body, one that goes upstream.
func (d *Decision) Withhold() {
	if d.Cache == CacheHit || d.Cache == CacheStaleServed {
		d.Action, d.Key = Pass, ""
		d.pass(CacheBypass, statusCrowded)
	}
}

func (d *Decision) pass(counter Counter, why string) { d.Cache, d.CacheStatus = counter, why }

var (
	errExpired       = errors.New("past its ttl")
	errNotAcceptable = errors.New("no stored encoding is acceptable")
)

// cacheStatusAt is where serve puts Cache-Status among the headers.
const cacheStatusAt = 0

// serve makes d a 304 or a 200 of o, or says why it can't.
func (e *Edge) serve(d *Decision, nowMS int64, rule *Rule, r *Request, s *source, o *wire.Object) error {
	i := choose(o.Variants(), r.acceptEncoding, r.hasAccept)
	if i < 0 {
		return errNotAcceptable
	}
	encoding := o.Variants()[i].Encoding
	etag := o.ETag
	if encoding != wire.Identity {
		// One opaque tag for all encodings: strong only for the bytes it was made of.
		etag = e.compose(append(append(e.text, "W/"...), etag...))
	}
	headers := append(e.headers[:0], [2]string{"cache-status", e.cacheStatus(nowMS, o)}, [2]string{"etag", etag},
		[2]string{"cache-control", e.cacheControl(rule, o)},
		[2]string{"age", e.decimal("", max(nowMS-o.PublishedMS, 0)/1000)})
	if vary := e.vary(rule, o); vary != "" {
		headers = append(headers, [2]string{"vary", vary})
	}
	if noneMatch(r.ifNoneMatch, o.ETag) {
		d.Action, d.Status, d.Headers, d.Cache = Reply, 304, headers, CacheNotModified
		return nil
	}
	body := s.body(o, i)
	if body == nil {
		return wire.ErrNotFound
	}
	headers = append(headers, [2]string{"content-type", o.ContentType})
	if encoding != wire.Identity {
		headers = append(headers, [2]string{"content-encoding", encoding.String()})
	}
	d.Action, d.Status, d.Headers, d.Body, d.Cache = Reply, 200, headers, body, CacheHit
	return nil
}

// source finds an object in what the sidecar fetched, or else in shared memory.
type source struct {
	mem     Memory
	fetched *wire.FetchResponse
	epoch   uint64
}

// failed reports whether the sidecar was asked and gave no answer, so that nobody knows
// whether there is an object.
func (s *source) failed() bool { return s.fetched != nil && s.fetched.Epoch == 0 }

func (s *source) find(state *wire.State, key string) (*wire.Object, error) {
	if s.fetched != nil {
		if s.failed() {
			return nil, wire.ErrNotFound
		}
		o, err := wire.FindObject(s.fetched.Record, s.fetched.Epoch, 0, key)
		return &o, err
	}
	s.epoch = state.Epoch
	return s.mem.Object(state, key)
}

func (s *source) body(o *wire.Object, i int) []byte {
	if s.fetched != nil {
		return s.fetched.Body(o, i)
	}
	return s.mem.Body(s.epoch, o.Variants()[i])
}

// key is the cache key of r, see [Request.appendKey]; it is valid until the next decision.
func (e *Edge) key(r *Request, c *Cache, device string) (string, bool) {
	all, ok := r.appendKey(e.text, c, device)
	return e.compose(all), ok
}

// decimal is prefix and n in decimal digits; it is valid until the next decision.
func (e *Edge) decimal(prefix string, n int64) string {
	return e.compose(strconv.AppendInt(append(e.text, prefix...), n, 10))
}

// compose is what all has beyond e.text, to which it was appended; it is valid until the
// next decision, which writes over it.
func (e *Edge) compose(all []byte) string {
	added := all[len(e.text):]
	e.text = all
	return unsafe.String(unsafe.SliceData(added), len(added))
}

// cacheControl lets clients and caches keep an answer for its ttl, and otherwise keep it
// but ask each time, which is what a 304 is for. What needs a credential is private.
func (e *Edge) cacheControl(rule *Rule, o *wire.Object) string {
	switch {
	case o.TTLMS != 0 && rule.Auth != nil:
		return e.decimal("private, max-age=", int64(o.TTLMS/1000))
	case o.TTLMS != 0:
		return e.decimal("max-age=", int64(o.TTLMS/1000))
	case rule.Auth != nil:
		return "private, no-cache"
	default:
		return "no-cache"
	}
}

// vary names what an answer depends on besides its URL: a cache of one client may serve several
// devices, and what one of them may see is not for the next one (RFC 9110, section 12.5.5).
func (e *Edge) vary(rule *Rule, o *wire.Object) string {
	encoded := len(o.Variants()) > 1
	switch {
	case rule.Auth != nil && encoded:
		return e.varyEncodedCredential
	case rule.Auth != nil:
		return e.varyCredential
	case encoded:
		return varyEncoding
	}
	return ""
}

// cacheStatus is the Cache-Status of a hit.
func (e *Edge) cacheStatus(nowMS int64, o *wire.Object) string {
	if o.TTLMS == 0 {
		return statusHit
	}
	return e.decimal(statusHit+"; ttl=", (o.PublishedMS+int64(o.TTLMS)-nowMS)/1000)
}
