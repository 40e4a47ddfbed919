package policy

import (
	"math/bits"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxCachedAnswers bounds the cached answers of an edge; a power of two.
const maxCachedAnswers = 1 << cachedAnswerBits

const cachedAnswerBits = 10

// maxCachedBytes bounds a question and the headers of its answer in the cache, in bytes.
const maxCachedBytes = 2 << 10

// question is the key of a cached answer, which depends on nothing else but the object and the time.
type question struct {
	hash           uint64
	rule           int
	target         string // the part on which the key depends
	device         string // "", or for objects per device, host or language these parts
	ifNoneMatch    string
	acceptEncoding string
	// ifModifiedSince is used without If-None-Match only. Its answer isn't cached.
	ifModifiedSince string
}

// size returns the size of all parts, in bytes.
func (q *question) size() int {
	return len(q.target) + len(q.device) + len(q.ifNoneMatch) + len(q.acceptEncoding)
}

// computeHash returns a hash of all parts. A client can choose two questions with one entry, and so lose the gain of
// caching for both. The code is short: see docs/decisions/module.md.
func (q *question) computeHash() uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2⁶⁴ by the golden ratio
	h := uint64(q.rule)
	for _, s := range [...]string{q.target, q.device, q.ifNoneMatch, q.acceptEncoding} {
		h ^= uint64(len(s))
		i := 0
		for ; i+8 <= len(s); i += 8 {
			h = bits.RotateLeft64((h^*(*uint64)(unsafe.Pointer(unsafe.StringData(s[i:]))))*odd, 32)
		}
		for ; i < len(s); i++ {
			h = (h ^ uint64(s[i])) * odd
		}
	}
	return h * odd
}

// answerCache has the cached answers of an edge, and the purges under way.
type answerCache struct {
	answers     [maxCachedAnswers]cachedAnswer
	purges      []wire.Purge // under way when the guard was purgesGuard; 0: to be read again
	purgesGuard uint64
}

// findEntry returns the entry for a question, with the answer to this question or another.
func (c *answerCache) findEntry(q *question) *cachedAnswer {
	return &c.answers[q.hash>>(64-cachedAnswerBits)]
}

// dropAnswers drops all answers, and the purges.
func (c *answerCache) dropAnswers() {
	c.purgesGuard = 0
	for i := range c.answers {
		c.answers[i].untilMS = 0
	}
}

// readPurges returns the purges under way, for the guard's value before the call; [wire.ErrEpoch] if memory has another
// epoch, with purges unknown to this state. Call it before the objects are read: a purge ends after the removal of the
// purge's last object.
func (c *answerCache) readPurges(guard, epoch uint64, mem Memory) ([]wire.Purge, error) {
	if guard != 0 && guard == c.purgesGuard {
		return c.purges, nil
	}
	record := mem.Record(wire.RegionState, 0)
	switch found, err := wire.RecordEpoch(record, wire.RegionState); {
	case err != nil: // what was known last counts
	case found != epoch:
		return nil, wire.ErrEpoch
	default:
		c.purges = wire.ParsePurges(record)
	}
	c.purgesGuard = guard
	return c.purges, nil
}

// cachedAnswer is a cached answer to a question, far cheaper than a new answer. Of a question's first occurrence, only
// the hash is stored.
type cachedAnswer struct {
	question // refers to text
	validity
	status  int
	headers []byte
	body    *Body // nil for a 304
	counter Counter
	key     string // refers to text

	lastHash uint64 // the hash of the last question here
	text     []byte
}

// validity is the time in which an answer has the same bytes, while the state is unchanged.
type validity struct {
	guard   uint64 // before the object was read
	fromMS  int64  // unix ms
	untilMS int64  // unix ms, exclusive; 0 if dropped
}

// isAnswerTo reports whether k is a valid answer to q now.
func (k *cachedAnswer) isAnswerTo(q *question, nowMS int64, mem Memory) bool {
	return k.question == *q && k.fromMS <= nowMS && nowMS < k.untilMS && (k.body == nil || k.body.Bytes != nil) &&
		mem.Guard() == k.guard
}

// fillDecision fills d with the answer.
func (k *cachedAnswer) fillDecision(d *Decision) {
	d.Action, d.Status, d.Headers, d.Cache, d.Key = Reply, k.status, k.headers, k.counter, k.key
	if k.body != nil {
		d.Body = k.body.Bytes
	}
}

// storeAnswer copies q and its answer.
func (k *cachedAnswer) storeAnswer(q *question, d *Decision, body *Body, v validity) {
	size := q.size() + len(d.Key)
	if size+len(d.Headers) > maxCachedBytes || q.ifModifiedSince != "" {
		return
	}
	if size > cap(k.text) {
		k.text = make([]byte, 0, size)
	}
	k.text = k.text[:0]
	k.question, k.validity = *q, v
	for _, s := range [...]*string{&k.target, &k.device, &k.ifNoneMatch, &k.acceptEncoding} {
		*s = k.copyText(*s)
	}
	k.key = k.copyText(d.Key)
	k.status, k.body, k.counter = d.Status, body, d.Cache
	k.headers = append(k.headers[:0], d.Headers...)
}

// copyText copies s into the text, which has room for s, and returns the copy.
func (k *cachedAnswer) copyText(s string) string {
	start := len(k.text)
	k.text = append(k.text, s...)
	return unsafe.String(unsafe.SliceData(k.text[start:]), len(s))
}

// unchangedUntil returns when the answer with an unchanged object would change, unix ms: when the age of the state or
// the remaining lifetime has another number of seconds, the object expires, or the state becomes stale.
func (s *edgeState) unchangedUntil(nowMS int64, o *wire.Object) int64 {
	age := max(nowMS-s.InStepMS, 0) / 1000
	until := min(s.InStepMS+(age+1)*1000, s.InStepMS+s.config.MaxStaleness.Milliseconds()+1)
	if o.TTLMS != 0 {
		expires := o.PublishedMS + int64(o.TTLMS)
		until = min(until, expires, expires-(expires-nowMS)/1000*1000+1)
	}
	return until
}
