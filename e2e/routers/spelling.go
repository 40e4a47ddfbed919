package routers

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// protocol is the version of HTTP by which a request is sent.
type protocol string

const (
	http10 protocol = "HTTP/1.0"
	http11 protocol = "HTTP/1.1"
	http2  protocol = "HTTP/2"
)

// A spelling is one request, exactly as sent.
type spelling struct {
	number    uint64
	protocol  protocol
	method    string
	path      string // request target, or :path
	authority string
	headers   []header
	who       *identity
}

type header struct{ name, value string }

// String returns the request as sent, HTTP/2 in text form.
func (s spelling) String() string {
	var b strings.Builder
	if s.protocol == http2 {
		fmt.Fprintf(&b, ":method: %q, :path: %q, :authority: %q", s.method, s.path, s.authority)
	} else {
		fmt.Fprintf(&b, "%q, host: %q", s.method+" "+s.path+" "+string(s.protocol), s.authority)
	}
	for _, h := range s.headers {
		fmt.Fprintf(&b, ", %q", h.name+": "+h.value)
	}
	return fmt.Sprintf("%s [%s]", b.String(), s.protocol)
}

// maySplit reports whether an HTTP/1 server may parse the request as two.
func (s spelling) maySplit() bool {
	return s.protocol != http2 && strings.ContainsAny(s.method+s.path+s.authority, "\r\n")
}

// newSpelling returns spelling number of a seed. The first spellings are the same for all seeds: each byte at some
// places of each protected path. The rest are random.
func newSpelling(seed, number uint64) spelling {
	s, drawn := systematicSpelling(number)
	if drawn {
		s = randomSpelling(rand.New(rand.NewPCG(seed, number)))
	}
	s.number = number
	s.showCredential()
	return s
}

// showCredential adds the credential of who.
func (s *spelling) showCredential() {
	if s.who.id != "" {
		s.headers = append(s.headers, header{"x-device-id", s.who.id})
	}
	if s.who.secret != "" {
		s.headers = append(s.headers, header{"x-device-token", s.who.secret})
	}
}

// insertions are the places where systematicSpelling inserts a byte, and the byte's encoding.
var insertions = []struct {
	protocol protocol
	put      func(path string, b byte) string
}{
	{http11, func(path string, b byte) string { return path + escapeByte(b) }},
	{http2, func(path string, b byte) string { return path + escapeByte(b) }},
	{http11, func(path string, b byte) string { return path + escapeByte(b) + "x" }},
	{http11, func(path string, b byte) string { return path + "/" + escapeByte(b) }},
	{http11, func(path string, b byte) string { return beforeLast(path, escapeByte(b)) }},
	{http11, func(path string, b byte) string { return "/" + escapeByte(b) + path }},
	{http11, func(path string, b byte) string { return path + "%25" + escapeByte(b)[1:] }},
	{http11, func(path string, b byte) string { return path + string([]byte{b}) }},
	{http2, func(path string, b byte) string { return path + string([]byte{b}) }},
}

// systematicCount is the number of spellings that don't depend on the seed.
var systematicCount = uint64(256 * len(insertions) * len(protected))

// systematicSpelling returns the spelling of a number below systematicCount, and true for greater numbers. All bytes at
// one place of one path come before the next place, in the order of resources.
func systematicSpelling(number uint64) (s spelling, beyond bool) {
	if number >= systematicCount {
		return spelling{}, true
	}
	b, rest := byte(number%256), number/256
	target, place := protected[rest%uint64(len(protected))], insertions[rest/uint64(len(protected))]
	return spelling{
		protocol: place.protocol, method: target.method, path: place.put(target.path, b),
		authority: "edge.example", who: nobody,
	}, false
}

func escapeByte(b byte) string { return fmt.Sprintf("%%%02x", b) }

// beforeLast inserts text before the last slash of path.
func beforeLast(path, text string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:i] + text + path[i:]
}

// randomSpelling returns a random spelling: a target, usually a protected resource, with one to four changes of its
// path, rarely of method, headers or host.
func randomSpelling(r *rand.Rand) spelling {
	target := pick(r, protected)
	if r.IntN(8) == 0 {
		target = pick(r, resources)
	}
	s := spelling{protocol: http11, method: target.method, path: target.path, authority: "edge.example", who: nobody}
	switch n := r.IntN(100); {
	case n < 35:
		s.protocol = http2
	case n < 37:
		s.protocol = http10
	}
	if r.IntN(4) == 0 {
		s.who = pick(r, identities)
	}
	if r.IntN(8) == 0 {
		s.method = spellMethod(r, s.method)
	}
	disguised := r.IntN(6) == 0
	if !disguised || r.IntN(2) == 0 {
		for range 1 + r.IntN(1+r.IntN(4)) {
			s.path = changePath(r, s.path)
		}
	}
	if disguised {
		disguiseRequest(r, &s)
	}
	if r.IntN(24) == 0 {
		s.headers = append(s.headers, pick(r, sideHeaders))
	}
	if r.IntN(32) == 0 {
		s.authority = pick(r, authorities)
	}
	return s
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
