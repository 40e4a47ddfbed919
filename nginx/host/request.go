//go:build nginx

package main

// #include "shim.h"
import "C"

import (
	"bytes"
	"strings"
	"time"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx/jwt"
)

// waitMargin is how much longer than a call a request waits for its answer: the VM gives up 5 s after the timeout.
const waitMargin = 10 * time.Second

// judgeRequest judges a request, new or after a wait, by the target from the client, whatever nginx makes of the
// target. It returns the action on the request, less than 0 for a refusal as after a panic.
func (w *worker) judgeRequest(q *C.gh_request, out *C.gh_out, head *C.gh_answer_head) C.int {
	h := w.edge
	target := viewText(q.target, q.target_length)
	if target == "" || target[0] != '/' && target[0] != '?' {
		return C.GH_BAD // no target, or no path: nginx answers by an error_page
	}
	if target[0] == '?' {
		target = "/" + target // as nginx sends "http://host?query" upstream
	}
	h.enterRequest(q.r)
	headers := unsafe.Slice(q.headers, int(q.header_count))
	method := viewText(q.method, q.method_length)
	h.vm.SetUnread(int(q.unread))
	var action edge.Action
	var hasBody bool
	taken := false
	id := uint32(q.id)
	if id == 0 {
		if w.id++; w.id == 0 {
			w.id++
		}
		id = w.id
		h.id = id
		valid := true
		if w.tokens != nil {
			taken, valid = w.takeToken(headers)
		}
		h.raw, hasBody = appendHeaders(h.raw[:0], method, target, h.resolveAuthority(headers), headers, taken)
		if valid {
			action = h.vm.RequestHeaders(id, true)
		} else {
			action = h.vm.RefuseToken(id, w.tokens.HasKeys())
		}
	} else {
		held := h.held[id]
		delete(h.held, id)
		if held == nil || held.failed || held.goOn == nil {
			h.vm.EndStream(id)
			out.more = boolToC(w.hasTask())
			return -1
		}
		h.claims, taken, h.id = held.claims, held.taken, id
		h.raw, hasBody = appendHeaders(h.raw[:0], method, target, h.resolveAuthority(headers), headers, taken)
		action = held.goOn()
	}
	out.more = boolToC(w.hasTask())
	switch {
	case h.answer.set:
		return w.giveAnswer(q.id == 0, hasBody, method, out, head)
	case action == edge.Continue:
		if taken {
			h.RemoveRequestHeader("authorization")
		}
		if !h.headersApplied() {
			return C.GH_BAD
		}
		h.setVariable("gatehouse_judged", "1")
		return C.GH_PASS
	}
	wait := h.vm.Config().SidecarTimeout + waitMargin
	h.held[id] = &heldRequest{claims: h.claims, taken: taken, till: time.Now().Add(wait + time.Second)}
	out.id, out.wait = C.uint32_t(id), C.int32_t(wait.Milliseconds())
	return C.GH_WAIT
}

func boolToC(on bool) C.int32_t {
	if on {
		return 1
	}
	return 0
}

// takeToken validates a request's token, which doesn't go upstream. It returns whether the request has a valid token,
// and false for a bad token: a request with a bad token is refused on every path.
func (w *worker) takeToken(headers []C.gh_element) (taken, valid bool) {
	lines, tokens, token := 0, 0, ""
	for i := range headers {
		if e := &headers[i]; textOf(e.key) == "authorization" {
			lines++
			if text, ok := jwt.BearerToken(strings.Trim(textOf(e.value), " \t")); ok {
				tokens++
				token = text
			}
		}
	}
	if tokens == 0 {
		return false, true
	}
	if lines > 1 {
		return false, false // two tokens, or a token beside another line
	}
	w.edge.claims, valid = w.tokens.Validate(token, time.Now())
	return valid, valid
}

func textOf(s C.gh_str) string { return unsafe.String((*byte)(unsafe.Pointer(s.data)), int(s.len)) }

// resolveAuthority returns the authority of an absolute target, which nginx prefers to the Host header; "" if the Host
// header is the same. In headers, the host becomes nginx's own reading of the host. Without rules by host, authority
// does nothing.
func (h *host) resolveAuthority(headers []C.gh_element) string {
	if !h.hosted {
		return ""
	}
	_, target, _ := strings.Cut(h.viewVariable("request"), " ")
	target = strings.TrimLeft(target, " ")
	authority := ""
	if target != "" && target[0] != '/' {
		_, authority, _ = strings.Cut(target, "://")
		if end := strings.IndexAny(authority, "/? "); end >= 0 {
			authority = authority[:end]
		}
		authority = trimHostDot(authority)
	}
	same := false
	for i := range headers {
		if textOf(headers[i].key) == "host" {
			host := trimHostDot(textOf(headers[i].value))
			headers[i].value.len = C.int(len(host))
			same = same || strings.EqualFold(host, authority)
		}
	}
	if same {
		return ""
	}
	return authority
}

// trimHostDot returns a host without a dot at the end, which nginx removes, and without the port after such a dot. Text
// that can't be a host stays unchanged, for the policy to refuse.
func trimHostDot(host string) string {
	name, port, _ := strings.Cut(host, ":")
	if strings.HasSuffix(name, ".") && policy.ValidPort(port) {
		return name[:len(name)-1]
	}
	return host
}

// appendHeaders appends method, target, authority, unless empty, and headers in the form of package headermap, except
// Authorization with a taken token. It reports whether a body follows. Values lose the white space at both ends; nginx
// removes only spaces (RFC 9110, section 5.5).
func appendHeaders(dst []byte, method, target, authority string, headers []C.gh_element, taken bool) (raw []byte,
	hasBody bool) {
	const pseudo = 2
	fields := len(headers) + pseudo
	if taken {
		fields--
	}
	if authority != "" {
		fields++
	}
	size := 4 + 8*fields
	if cap(dst) < size {
		dst = make([]byte, 0, size+4096)
	}
	dst = dst[:size]
	*(*uint32)(unsafe.Pointer(&dst[0])) = uint32(fields)
	at := 0
	put := func(name, value string) {
		*(*uint64)(unsafe.Pointer(&dst[4+8*at])) = uint64(uint32(len(name))) | uint64(len(value))<<32
		at++
		dst = append(append(dst, name...), 0)
		dst = append(append(dst, value...), 0)
	}
	put(":method", method)
	put(":path", target)
	if authority != "" {
		put(":authority", authority)
	}
	for i := range headers {
		name, value := textOf(headers[i].key), textOf(headers[i].value)
		for len(value) > 0 && (value[0] == '\t' || value[0] == ' ') {
			value = value[1:]
		}
		for len(value) > 0 && (value[len(value)-1] == '\t' || value[len(value)-1] == ' ') {
			value = value[:len(value)-1]
		}
		switch len(name) {
		case len("expect"): // nginx answers 100 Continue when it discards the body, and otherwise after our answer
			hasBody = hasBody || name == "expect"
		case len("authorization"):
			if taken && name == "authorization" {
				continue
			}
		case len("content-length"):
			hasBody = hasBody || name == "content-length"
		case len("transfer-encoding"):
			hasBody = hasBody || name == "transfer-encoding"
		}
		put(name, value)
	}
	return dst, hasBody
}

// giveAnswer passes the answer to C and Lua. Lua keeps the body of a hit for other requests, except after a wait: the
// body may be part of a fetch, which has all encodings, is at no address again, and would stay in memory as a whole.
func (w *worker) giveAnswer(atOnce, hasBody bool, method string, out *C.gh_out, head *C.gh_answer_head) C.int {
	a := &w.edge.answer
	*head = C.gh_answer_head{status: C.int32_t(a.status)}
	head.fields = (*C.uchar)(unsafe.Pointer(unsafe.SliceData(a.headers)))
	hit := a.details == "gatehouse_hit" || a.details == "gatehouse_hit_stale"
	if !hit && a.details != "gatehouse_not_modified" || w.edge.vm.Config().LogHits && !w.edge.spared {
		head.reason, head.reason_length = lendText(a.details)
	}
	out.status, out.body, out.body_length, out.key, out.forget = C.int32_t(a.status), nil, 0, 0, 0
	if a.body != nil {
		head.content_length, head.has_length = C.size_t(len(a.body)), 1
	}
	if len(a.body) > 0 && method != "HEAD" {
		out.body, out.body_length = lendBytes(a.body)
		if hit && atOnce && a.status != 206 { // a part shares memory with a whole body
			w.kept.setKey(a.body, out)
		}
	}
	if hasBody {
		return C.GH_DISCARD
	}
	return C.GH_REPLY
}

// keptBodies are the bodies that Lua keeps as strings, referenced here to keep each address unique.
type keptBodies struct {
	byStart map[*byte]keptBody
	size    int // bytes
	newest  float64
}

type keptBody struct {
	key  float64
	body []byte
}

// maxKept bounds the bodies in Lua, bytes; a body below leastKept is cheaper to copy.
const (
	maxKept   = 16 << 20
	leastKept = 128
)

// setKey sets the key of a body in Lua.
func (k *keptBodies) setKey(body []byte, out *C.gh_out) {
	if len(body) < leastKept {
		return
	}
	start := unsafe.SliceData(body)
	if kept, found := k.byStart[start]; found && len(kept.body) == len(body) {
		out.key = C.double(kept.key)
		return
	}
	if k.size += len(body); k.size > maxKept {
		clear(k.byStart)
		k.size, out.forget = len(body), 1
	}
	k.newest++
	k.byStart[start] = keptBody{k.newest, body}
	out.key = C.double(k.newest)
}

// handlePush answers a request at the push listener.
func (w *worker) handlePush(q *C.gh_request, body []byte, out *C.gh_out) {
	h := w.pusher
	h.enterRequest(q.r)
	h.raw = headermap.Append(h.raw[:0], [][2]string{
		{":method", viewText(q.method, q.method_length)},
		{":path", viewText(q.target, q.target_length)},
		{"user-agent", h.readVariable("http_user_agent")},
	})
	h.body = body
	const id = 1
	h.vm.RequestHeaders(id, false)
	if !h.answer.set {
		h.vm.RequestBody(id, len(body), true)
	}
	h.vm.EndStream(id)
	h.body = nil
	h.answer.body = bytes.Clone(h.answer.body) // the body may be part of the memory file
	fields, _ := headermap.ParseFields(h.answer.headers)
	_, w.reply = fields.Next()
	out.status = C.int32_t(h.answer.status)
	out.name, out.name_length = lendText(w.reply)
	out.body, out.body_length = lendBytes(h.answer.body)
}
