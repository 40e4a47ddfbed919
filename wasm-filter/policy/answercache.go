package policy

import (
	"math/bits"
	"unsafe"

	"github.com/gatehouse/gatehouse/wire"
)

// keptAnswers bounds the answers that an edge keeps. It is a power of two.
const keptAnswers = 1 << keptBits

const keptBits = 10

// maxKept bounds what is kept of a question and of the headers of its answer, bytes.
const maxKept = 1 << 10

// question is what an answer from the cache depends on, besides the object and the time.
type question struct {
	hash           uint64
	rule           int
	target         string // as far as it counts
	device         string // "" unless the rule's objects are per device
	ifNoneMatch    string
	acceptEncoding string
	// ifModifiedSince counts where there is no If-None-Match. An answer to it isn't kept.
	ifModifiedSince string
}

// size is that of all parts, bytes.
func (q *question) size() int {
	return len(q.target) + len(q.device) + len(q.ifNoneMatch) + len(q.acceptEncoding)
}

// sum is the hash, which has all parts. Who chooses them can make two questions share an entry, which takes
// their gain and no more. It is written for being short: see docs/performance-log.md on what a request runs through.
func (q *question) sum() uint64 {
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

// entry is where the question's answer is kept.
func (q *question) entry() int { return int(q.hash >> (64 - keptBits)) }

// kept is an answer that was given before, to be given to the same question again: that costs far
// less than composing it. What is asked for once leaves no more than its hash.
type kept struct {
	question // refers to text
	validity
	status  int
	headers []byte
	body    *Body // nil of a 304
	counter Counter
	key     string // refers to text

	asked uint64 // the hash of what was asked for here last
	text  []byte
}

// validity is when an answer would be composed of the same bytes, as long as the state is the same.
type validity struct {
	guard   uint64 // before the object was read
	fromMS  int64  // unix ms
	untilMS int64  // likewise, exclusive; 0 of what was forgotten
}

// answers reports whether k answers q now.
func (k *kept) answers(q *question, nowMS int64, mem Memory) bool {
	return k.question == *q &&
		k.fromMS <= nowMS && //mutant:TestKeptByTheMillisecond true
		nowMS < k.untilMS && //mutant:TestKeptByTheMillisecond k.untilMS != 0
		(k.body == nil || k.body.Bytes != nil) && //mutant:TestKeptWithoutItsBody true
		mem.Guard() == k.guard //mutant:wasm-filter/TestAnswersAreKept true
}

// give makes d the answer.
func (k *kept) give(d *Decision) {
	d.Action, d.Status, d.Headers, d.Cache, d.Key = Reply, k.status, k.headers, k.counter, k.key
	if k.body != nil {
		d.Body = k.body.Bytes
	}
}

// keep copies q and the answer to it.
func (k *kept) keep(q *question, d *Decision, body *Body, v validity) {
	size := q.size() + len(d.Key)
	if size+len(d.Headers) > maxKept || q.ifModifiedSince != "" { //mutant:TestModifiedSince false
		return
	}
	if size > cap(k.text) {
		k.text = make([]byte, 0, size)
	}
	k.text = k.text[:0]
	k.question, k.validity = *q, v
	for _, s := range [...]*string{&k.target, &k.device, &k.ifNoneMatch, &k.acceptEncoding} {
		*s = k.own(*s)
	}
	k.key = k.own(d.Key)
	k.status, k.body, k.counter = d.Status, body, d.Cache
	k.headers = append(k.headers[:0], d.Headers...)
}

// own is s as part of the text, which has room for it.
func (k *kept) own(s string) string {
	start := len(k.text)
	k.text = append(k.text, s...)
	return unsafe.String(unsafe.SliceData(k.text[start:]), len(s))
}

// unchangedUntil is when another answer would be composed of an object that hasn't changed, unix ms: when
// the age of the state or what is left of its lifetime has another number of seconds, it has expired, or the state is
// stale.
func (e *Engine) unchangedUntil(nowMS int64, o *wire.Object) int64 {
	age := max(nowMS-e.state.InStepMS, 0) / 1000
	until := min(e.state.InStepMS+(age+1)*1000, e.state.InStepMS+e.config.MaxStaleness.Milliseconds()+1)
	if o.TTLMS != 0 {
		expires := o.PublishedMS + int64(o.TTLMS)
		until = min(until, expires, expires-(expires-nowMS)/1000*1000+1)
	}
	return until
}

// Forget drops all answers that are kept.
func (e *Engine) Forget() {
	for i := range e.kept {
		e.kept[i].untilMS = 0
	}
}
