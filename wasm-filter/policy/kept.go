package policy

import "unsafe"

// keptAnswers bounds the answers that an edge keeps. It is a power of two.
const keptAnswers = 1 << keptBits

const keptBits = 10

// maxKept bounds what is kept of a question and of its answer without the body, bytes.
const maxKept = 2 << 10

// question is what an answer from the cache depends on, besides the object and the time.
type question struct {
	hash           uint32
	rule           int
	target         string
	device         string // "" unless the rule's objects are per device
	ifNoneMatch    string
	acceptEncoding string
	accepts        bool // an Accept-Encoding header is there, be it empty
}

// sum is the hash, of the ends of the parts, in which they differ most. Who chooses them can
// make two questions share an entry, which takes their gain and no more.
func (q *question) sum() uint32 {
	h := uint32(len(q.acceptEncoding))
	for _, s := range [...]string{q.target, q.device, q.ifNoneMatch} {
		for i := max(len(s)-8, 0); i < len(s); i++ {
			h = h*31 + uint32(s[i])
		}
	}
	return h * 0x9e3779b1
}

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

	asked uint32 // the hash of what was asked for here last
	text  []byte
}

// validity is when an answer would be composed of the same bytes.
type validity struct {
	epoch  uint64
	guard  uint64 // before the object was read
	fromMS int64  // unix ms
	// untilMS is exclusive; it is 0 of what was forgotten.
	untilMS int64
}

// answers reports whether k answers q now.
func (k *kept) answers(q *question, nowMS int64, epoch uint64, mem Memory) bool {
	return k.question == *q && k.epoch == epoch && k.fromMS <= nowMS && nowMS < k.untilMS &&
		(k.body == nil || k.body.Bytes != nil) && mem.Guard() == k.guard
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
	size := len(q.target) + len(q.device) + len(q.ifNoneMatch) + len(q.acceptEncoding) + len(d.Key)
	if size+len(d.Headers) > maxKept {
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

// Forget drops all answers that are kept.
func (e *Edge) Forget() {
	for i := range e.kept {
		e.kept[i].untilMS = 0
	}
}
