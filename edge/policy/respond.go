package policy

import (
	"errors"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/objectkey"
	"github.com/gatehouse/gatehouse/edge/entitytag"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// The Cache-Status (RFC 9211) of upstream responses, and of a hit.
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

// Why an answer from the cache is stale, with [Config.ServeStale].
const (
	notInStep = "not-in-step"
	purged    = "purged"
)

// maxAcceptEncoding bounds a parsed Accept-Encoding, in bytes.
const maxAcceptEncoding = 512

// responder answers requests from the cache.
type responder struct {
	config *Config
	state  *edgeState
	cache  answerCache

	// Buffers of the last decision.
	fields  [8 + limits.MaxHeaderLines][2]string
	headers []byte
	text    textBuffer
}

// answerFromCache answers a request from the cache if possible; otherwise the request passes.
func (p *responder) answerFromCache(d *Decision, nowMS int64, rule *Rule, r *Request, mem Memory, answers *Answers) {
	if r.method() != "GET" && r.method() != "HEAD" {
		d.passUpstream(CacheBypass, statusMethod)
		return
	}
	q := question{rule: r.rule,
		target: r.target(), ifNoneMatch: r.list(headerIfNoneMatch), acceptEncoding: r.list(headerAcceptEncoding)}
	if r.fields[headerIfModifiedSince].lines == 1 && !r.has(headerIfNoneMatch) {
		q.ifModifiedSince = r.fields[headerIfModifiedSince].value
	}
	if r.has(headerIfMatch) || r.has(headerIfUnmodifiedSince) || r.isGRPC() || len(q.acceptEncoding) > maxAcceptEncoding {
		d.passUpstream(CacheBypass, statusBypass)
		return
	}
	if rule.Cache.PerDevice {
		q.device = d.Device
		if q.device == "" { // the rule isn't enforced
			d.passUpstream(CacheBypass, statusBypass)
			return
		}
	}
	if rule.Cache.PerHost {
		q.device = p.text.joinTexts(asString(r.host.name), ' ', q.device)
	}
	if rule.Cache.Query != nil {
		q.target = rule.Cache.keyTarget(q.target)
	}
	if rule.Cache.Languages != nil {
		q.device = p.text.joinTexts(q.device, '#', rule.Cache.chooseLanguage(r))
	}
	if q.size() <= maxCachedBytes { // longer questions aren't cached
		q.hash = q.computeHash()
	}
	k := p.cache.findEntry(&q)
	if answers.Fetch == nil && !r.has(headerRange) && k.isAnswerTo(&q, nowMS, mem) {
		k.fillDecision(d)
		return
	}
	p.answerAnew(d, nowMS, rule, r, &q, k, mem, answers)
}

// answerAnew is answerFromCache for a question without a cached answer. It caches the answer in k if the question comes
// again.
//
//go:noinline
func (p *responder) answerAnew(d *Decision, nowMS int64, rule *Rule, r *Request, q *question, k *cachedAnswer,
	mem Memory, answers *Answers) {
	key, ok := p.cacheKey(r, rule.Cache, d.Device)
	if !ok {
		d.passUpstream(CacheBypass, statusBypass)
		return
	}
	if p.state.Epoch == 0 {
		d.ReloadState = true
		d.passUpstream(CacheStale, statusNoState)
		return
	}
	detail := ""
	if !p.state.isInStep(nowMS, p.config.MaxStaleness) {
		if !p.config.ServeStale {
			d.passUpstream(CacheStale, statusNotInStep)
			return
		}
		detail = notInStep
	}
	finder := finder{mem: mem, fetched: answers.Fetch}
	var guard uint64
	if answers.Fetch == nil {
		guard = mem.Guard() // before the object is read: a later change has another guard
		finder.purges, finder.err = p.cache.readPurges(guard, p.state.Epoch, mem)
	}
	if detail != "" || r.has(headerRange) || k.lastHash != q.hash && k.hash != q.hash {
		guard = 0 // the answer isn't cached
	}
	k.lastHash = q.hash
	plain := key
	if language := rule.Cache.chooseLanguage(r); language != "" {
		key = p.text.languageKey(key, language)
	}
	o, err := finder.findObject(p.state, key)
	if err != nil && key != plain && (!rule.Cache.Fetch || answers.Fetch != nil) {
		key = plain
		o, err = finder.findObject(p.state, key)
	}
	if err == nil && o.TTLMS != 0 && nowMS >= o.PublishedMS+int64(o.TTLMS) {
		err = errExpired
	} else if err == nil && o.Stale {
		if !p.config.ServeStale {
			err = errExpired
		} else if o.TTLMS = 0; detail == "" { // clients must revalidate it
			detail = purged
		}
	}
	var body *Body
	if err == nil {
		body, err = p.serveObject(d, nowMS, rule, r, q, &finder, &o, detail)
	}
	switch {
	case err == nil && detail != "":
		d.Cache = CacheStaleServed
	case err == nil:
		d.Key = key
		if guard != 0 {
			k.storeAnswer(q, d, body, validity{
				guard,
				nowMS, p.state.unchangedUntil(nowMS, &o),
			})
		}
	case errors.Is(err, errNotAcceptable):
		d.passUpstream(CacheBypass, statusNotAcceptable)
	case rule.Cache.Fetch && !limits.ValidKey(key): // it can't have been published
		d.passUpstream(CacheBypass, statusBypass)
	case rule.Cache.Fetch && answers.Fetch == nil && !answers.Unreachable: // to wait again would be in vain
		d.Action, d.Key, d.Cache, d.ReloadState = Fetch, key, CallFetch, d.ReloadState || isOtherEpoch(err)
	case errors.Is(err, errExpired):
		d.passUpstream(CacheStale, statusExpired)
	case finder.fetchFailed(), rule.Cache.Fetch && answers.Fetch == nil:
		d.passUpstream(CacheMiss, statusFetchFailed)
	default:
		d.ReloadState = d.ReloadState || isOtherEpoch(err)
		d.passUpstream(CacheMiss, statusMiss)
	}
}

// WithholdBody changes d, if it is an answer from the cache with a body, to pass upstream.
func (d *Decision) WithholdBody() {
	if d.Cache == CacheHit || d.Cache == CacheStaleServed {
		d.Action, d.Key = Pass, ""
		d.passUpstream(CacheBypass, statusCrowded)
	}
}

func (d *Decision) passUpstream(counter Counter, why string) { d.Cache, d.CacheStatus = counter, why }

var (
	errExpired       = errors.New("past its ttl")
	errNotAcceptable = errors.New("no stored encoding is acceptable")
)

// serveObject sets d to a 304 or the answer of o and returns the answer's body, or returns an error.
func (p *responder) serveObject(d *Decision, nowMS int64, rule *Rule, r *Request, q *question, f *finder,
	o *wire.Object, detail string) (*Body, error) {
	i := chooseVariant(o.Variants(), q.acceptEncoding)
	if i < 0 {
		return nil, errNotAcceptable
	}
	var part rangeAnswer
	if r.has(headerRange) {
		if part = p.answerRange(r, nowMS, o, q.acceptEncoding); part.extent != whole {
			i = part.variant
		}
	}
	encoding := o.Variants()[i].Encoding
	etag := o.ETag
	if encoding != wire.Identity {
		// One opaque tag for all encodings: strong only for the bytes from which the tag was made.
		etag = p.text.compose(append(append(p.text, "W/"...), etag...))
	}
	headers := append(p.fields[:0], [2]string{"cache-status", p.cacheStatus(nowMS, o, detail)}, [2]string{"etag", etag},
		[2]string{"cache-control", p.cacheControl(nowMS, rule, o)},
		[2]string{"age", p.text.formatDecimal("", max(nowMS-p.state.InStepMS, 0)/1000)})
	if vary := p.answerVary(r, rule, o); vary != "" {
		headers = append(headers, [2]string{"vary", vary})
	}
	status := int(max(o.Status, 200))
	// Preconditions count only where the answer would be a 200 (RFC 9110, section 13.2.1).
	if status == 200 && (entitytag.InList(q.ifNoneMatch, o.ETag, true) ||
		q.ifModifiedSince != "" && q.ifModifiedSince == p.lastModified(o)) {
		if o.Headers != "" {
			headers = appendPublished(headers, rule, o, true)
		}
		d.Action, d.Status, d.Headers, d.Cache = Reply, 304, p.headerMap(headers), CacheNotModified
		return nil, nil
	}
	if part.extent == unsatisfiable { // without freshness or Cache-Control, no cache stores it
		headers = append(headers[:2], [2]string{"content-range", part.contentRange})
		d.Action, d.Status, d.Headers, d.Body, d.Cache = Reply, 416, p.headerMap(headers), []byte{}, CacheHit
		return nil, nil
	}
	body := f.findBody(o, i)
	if body == nil {
		return nil, wire.ErrNotFound
	}
	bytes := body.Bytes
	if part.extent == partial {
		status, bytes = 206, bytes[part.from:part.end]
		headers = append(headers, [2]string{"content-range", part.contentRange})
	}
	headers = append(headers, [2]string{"content-type", o.ContentType})
	if rule.Cache.Languages != nil && publishedHeader(o, "content-language") == "" {
		if _, language := objectkey.CutLanguage(o.Key); language != "" {
			headers = append(headers, [2]string{"content-language", language})
		}
	}
	if modified := p.lastModified(o); modified != "" {
		headers = append(headers, [2]string{"last-modified", modified})
	}
	if encoding != wire.Identity {
		headers = append(headers, [2]string{"content-encoding", encoding.String()})
	}
	if o.Headers != "" {
		headers = appendPublished(headers, rule, o, false)
	}
	d.Action, d.Status, d.Headers, d.Body, d.Cache = Reply, status, p.headerMap(headers), bytes, CacheHit
	return body, nil
}

// headerMap returns headers as a header map, valid until the next decision.
func (p *responder) headerMap(headers [][2]string) []byte {
	p.headers = headermap.Append(p.headers[:0], headers)
	return p.headers
}

// finder finds an object in the sidecar's answer to a fetch, or otherwise in shared memory.
type finder struct {
	mem     Memory
	fetched *wire.FetchResponse
	purges  []wire.Purge // under way in mem
	err     error        // why mem can't be read
	epoch   uint64
}

// fetchFailed reports whether the sidecar gave no answer to a fetch: whether the object exists is unknown.
func (f *finder) fetchFailed() bool { return f.fetched != nil && f.fetched.Epoch == 0 }

func (f *finder) findObject(state *edgeState, key string) (wire.Object, error) {
	if f.fetched != nil {
		if f.fetchFailed() {
			return wire.Object{}, wire.ErrNotFound
		}
		return wire.FindObject(f.fetched.Record, f.fetched.Epoch, 0, key)
	}
	if f.err != nil {
		return wire.Object{}, f.err
	}
	f.epoch = state.Epoch
	bucket, tag := state.Keys.Place(key, state.ObjectBuckets)
	o, err := wire.FindObject(f.mem.Record(wire.RegionObjects, bucket), state.Epoch, tag, key)
	if err != nil {
		return o, err
	}
	for i := range f.purges {
		if p := &f.purges[i]; p.Concerns(&o) {
			if !p.Soft {
				return o, wire.ErrNotFound
			}
			o.Stale = true
		}
	}
	return o, nil
}

func (f *finder) findBody(o *wire.Object, i int) *Body {
	if f.fetched != nil {
		if body := f.fetched.Body(o, i); body != nil {
			return &Body{body}
		}
		return nil
	}
	return f.mem.Body(f.epoch, o.Variants()[i])
}

// Key returns the cache key of a device's request under the governing rule, which must have Cache; "" for none. Key is
// for explanations only; decisions don't use it.
func (r *Request) Key(device string) string {
	c := r.governor.rules[r.rule].Cache
	p := &r.engine.responder
	if key, ok := p.cacheKey(r, c, device); ok && (!c.PerDevice || device != "") {
		return strings.Clone(p.text.languageKey(key, c.chooseLanguage(r)))
	}
	return ""
}

// cacheKey returns the cache key of r, see [appendKey]; it is valid until the next decision. "%c3%a9" and "%C3%A9" are
// equal, also in a parameter's name, by which the query is sorted.
func (p *responder) cacheKey(r *Request, c *Cache, device string) (string, bool) {
	target := r.target()
	if strings.IndexByte(target, '%') >= 0 {
		target = p.text.upperEscapes(target)
	}
	all, ok := r.appendKey(p.text, target, c, device)
	return p.text.compose(all), ok
}

// answerVary returns the headers on which an answer depends: a client's cache may serve several devices, and must not
// give one device's answer to another device (RFC 9110, section 12.5.5).
func (p *responder) answerVary(r *Request, rule *Rule, o *wire.Object) string {
	encoded := len(o.Variants()) > 1
	if rule.Cache.Languages != nil {
		return p.varyLanguage(r, rule, encoded)
	}
	switch {
	case rule.isPrivate() && encoded:
		return r.governor.varyEncodedCredential
	case rule.isPrivate():
		return r.governor.varyCredential
	case encoded:
		return varyEncoding
	}
	return ""
}

// cacheStatus returns the Cache-Status of a hit; detail is why the object may be stale, "" if it isn't.
func (p *responder) cacheStatus(nowMS int64, o *wire.Object, detail string) string {
	status := statusHit
	if o.TTLMS != 0 {
		status = p.text.formatDecimal(statusHit+"; ttl=", (o.PublishedMS+int64(o.TTLMS)-nowMS)/1000)
	}
	if detail != "" {
		status += "; detail=" + detail
	}
	return status
}
