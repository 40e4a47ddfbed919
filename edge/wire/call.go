package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// VerifyRequest is the body of POST /v1/verify: the credential to verify, or the session of a token that the proxy has
// validated. It is also the body of POST /v1/session: the credential to exchange for a token.
//
//	0  u8  layout version
//	1  u8  length of the device id
//	2  u8  length of the secret
//	3  u8  length of the source
//	4  u8  length of the session
//	5      device id, secret, source, session
type VerifyRequest struct {
	DeviceID string // at most limits.MaxDeviceID bytes
	Secret   string // at most limits.MaxSecret bytes; "" with a session
	// Source is the client's IP address as text, "" if unknown to the edge.
	Source string
	// Session identifies the record that a token was issued for, at most limits.MaxSession bytes; "" for a credential.
	Session string
}

const verifyRequestSize = 5

// MaxSource is the length of the longest IP address as text: an IPv6 address with an IPv4 address at the end.
const MaxSource = 45

// AppendVerifyRequest appends the request to dst.
func AppendVerifyRequest(dst []byte, r *VerifyRequest) []byte {
	dst = append(dst, Layout, byte(len(r.DeviceID)), byte(len(r.Secret)), byte(len(r.Source)), byte(len(r.Session)))
	return append(append(append(append(dst, r.DeviceID...), r.Secret...), r.Source...), r.Session...)
}

// ParseVerifyRequest reads a request, without references to b.
func ParseVerifyRequest(b []byte) (VerifyRequest, error) {
	if err := checkMessage("verify request", b, verifyRequestSize); err != nil {
		return VerifyRequest{}, err
	}
	id, secret, source, session := int(b[1]), int(b[2]), int(b[3]), int(b[4])
	fits := id <= limits.MaxDeviceID && secret <= limits.MaxSecret && source <= MaxSource && session <= limits.MaxSession
	if len(b) != verifyRequestSize+id+secret+source+session || !fits || secret > 0 && session > 0 {
		return VerifyRequest{},
			fmt.Errorf("verify request of %d bytes with an id of %d, a secret of %d, a source of %d and a session of %d: %w",
				len(b), id, secret, source, session, ErrMalformed)
	}
	text := string(b[verifyRequestSize:])
	return VerifyRequest{DeviceID: text[:id], Secret: text[id:][:secret], Source: text[id+secret:][:source],
		Session: text[id+secret+source:]}, nil
}

// Network returns the part of an address that identifies a source: an IPv4 address, or the /64 of an IPv6 address,
// within which a client can choose any address. It returns false if text is not an address.
func Network(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, false
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // can't fail: 64 bits exist
		addr = prefix.Addr()
	}
	return addr, true
}

// VerifyResponse answers POST /v1/verify.
//
//	 0  u8   layout version
//	 1  u8   outcome: 1 allow, 2 deny, 3 unavailable, 4 throttled, 5 away
//	 2  u16  retry after, seconds (not with allow and deny)
//	 4  u32  throttle, ms (not with allow)
//	 8  u64  epoch of the edge's memory
//	16  u32  length of what follows
//	20       the device's permission names in byte order, joined by commas (allow only)
type VerifyResponse struct {
	Outcome     Outcome
	RetryAfterS uint16
	// ThrottleMS is how long the edge need not ask about other credentials from this source, see [Network]. With
	// Unavailable, credentials of new devices are refused meanwhile; with Throttled, all secrets of this device; with
	// Deny, all secrets but the right one.
	ThrottleMS  uint32
	Epoch       uint64
	Permissions string
}

const verifyResponseSize = 20

// AppendVerifyResponse appends the response to dst.
func AppendVerifyResponse(dst []byte, r *VerifyResponse) []byte {
	dst = append(dst, Layout, byte(r.Outcome))
	dst = binary.LittleEndian.AppendUint16(dst, r.RetryAfterS)
	dst = binary.LittleEndian.AppendUint32(dst, r.ThrottleMS)
	dst = binary.LittleEndian.AppendUint64(dst, r.Epoch)
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(r.Permissions))), r.Permissions...)
}

// ParseVerifyResponse reads a response; the permissions refer to b.
func ParseVerifyResponse(b []byte) (VerifyResponse, error) {
	if err := checkMessage("verify response", b, verifyResponseSize); err != nil {
		return VerifyResponse{}, err
	}
	r := VerifyResponse{
		Outcome:     Outcome(b[1]),
		RetryAfterS: binary.LittleEndian.Uint16(b[2:]),
		ThrottleMS:  binary.LittleEndian.Uint32(b[4:]),
		Epoch:       binary.LittleEndian.Uint64(b[8:]),
		Permissions: alias(b[verifyResponseSize:]),
	}
	whole := uint64(binary.LittleEndian.Uint32(b[16:])) == uint64(len(r.Permissions))
	if !whole || r.Outcome < Allow || r.Outcome > Away {
		return VerifyResponse{}, fmt.Errorf("verify response of %d bytes with outcome %d: %w", len(b), b[1], ErrMalformed)
	}
	return r, nil
}

// SessionResponse answers POST /v1/session.
//
//	0  u8   layout version
//	1  u8   outcome: 1 allow, 2 deny, 3 unavailable, 4 throttled
//	2  u16  retry after, seconds (unavailable and throttled only)
//	4  u32  throttle, ms (not with allow)
//	8  u32  length of what follows
//	12      what the device gets, JSON (allow only)
type SessionResponse struct {
	Outcome     Outcome
	RetryAfterS uint16
	ThrottleMS  uint32 // as in a VerifyResponse
	Body        []byte
}

const sessionResponseSize = 12

// AppendSessionResponse appends the response to dst.
func AppendSessionResponse(dst []byte, r *SessionResponse) []byte {
	dst = append(dst, Layout, byte(r.Outcome))
	dst = binary.LittleEndian.AppendUint16(dst, r.RetryAfterS)
	dst = binary.LittleEndian.AppendUint32(dst, r.ThrottleMS)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(r.Body)))
	return append(dst, r.Body...)
}

// ParseSessionResponse reads a response; the body refers to b.
func ParseSessionResponse(b []byte) (SessionResponse, error) {
	if err := checkMessage("session response", b, sessionResponseSize); err != nil {
		return SessionResponse{}, err
	}
	r := SessionResponse{
		Outcome: Outcome(b[1]), RetryAfterS: binary.LittleEndian.Uint16(b[2:]),
		ThrottleMS: binary.LittleEndian.Uint32(b[4:]), Body: b[sessionResponseSize:],
	}
	whole := uint64(binary.LittleEndian.Uint32(b[8:])) == uint64(len(r.Body))
	if r.Outcome < Allow || r.Outcome > Throttled || !whole || (r.Outcome == Allow) != (len(r.Body) > 0) {
		return SessionResponse{}, fmt.Errorf("session response of %d bytes with outcome %d: %w", len(b), b[1], ErrMalformed)
	}
	return r, nil
}

// FetchResponse answers POST /v1/fetch, whose body is a cache key: the object as an objects record of one entry, or an
// empty record if Redis has no object, and the bodies.
//
//	0  u8   layout version
//	1  3    zero
//	4  u32  length of the record
//	8       the record, then the bodies in the order of its variants
type FetchResponse struct {
	Epoch  uint64 // of Record
	Record []byte // for [FindObject]
	bodies []byte
}

const fetchResponseSize = 8

// AppendFetchResponse appends the response to dst; a nil o means a missing object. bodies are in the order of o's
// variants, with the variants' lengths. The entry's tag is 0: the calling edge may have another placement key.
func AppendFetchResponse(dst []byte, epoch uint64, o *Object, bodies [][]byte) []byte {
	dst = append(dst, Layout, 0, 0, 0, 0, 0, 0, 0)
	start := len(dst)
	if o == nil {
		dst = AppendObjectsHeader(dst, epoch, 0)
	} else {
		dst = AppendObject(AppendObjectsHeader(dst, epoch, 1), 0, o)
	}
	dst = FinishRecord(dst, start)
	binary.LittleEndian.PutUint32(dst[start-4:], uint32(len(dst)-start))
	for _, body := range bodies {
		dst = append(dst, body...)
	}
	return dst
}

// ParseFetchResponse reads a response; the result refers to b.
func ParseFetchResponse(b []byte) (FetchResponse, error) {
	if err := checkMessage("fetch response", b, fetchResponseSize); err != nil {
		return FetchResponse{}, err
	}
	length := binary.LittleEndian.Uint32(b[4:])
	if uint64(length) > uint64(len(b)-fetchResponseSize) {
		return FetchResponse{}, fmt.Errorf("fetch response: %d bytes of record, %d are left: %w", length,
			len(b)-fetchResponseSize, ErrMalformed)
	}
	r := FetchResponse{Record: b[fetchResponseSize : fetchResponseSize+int(length)],
		bodies: b[fetchResponseSize+int(length):]}
	epoch, err := RecordEpoch(r.Record, RegionObjects)
	if err != nil {
		return FetchResponse{}, fmt.Errorf("fetch response: objects record: %w", err)
	}
	r.Epoch = epoch
	return r, nil
}

// Body returns the bytes of the i-th variant of o, the object in Record, or nil if the response is too short. The bytes
// refer to the response.
func (r *FetchResponse) Body(o *Object, i int) []byte {
	at := uint64(0)
	for _, v := range o.Variants()[:i] {
		at += uint64(v.Length)
	}
	end := at + uint64(o.Variants()[i].Length)
	if end > uint64(len(r.bodies)) {
		return nil
	}
	return r.bodies[at:end]
}

// A hit report is the body of POST /v1/hits: keys that were answered from shared memory, one for each sampled hit. The
// sidecar uses the keys to choose the objects to keep.
//
//	0  u8  layout version
//	1  3   zero
//	4      keys × (u16 length, key)
const hitsSize = 4

// BeginHits starts a hit report in dst; [AppendHit] adds keys.
func BeginHits(dst []byte) []byte { return append(dst, Layout, 0, 0, 0) }

// AppendHit adds a key, at most limits.MaxKey bytes, to a report.
func AppendHit(b []byte, key string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(key))), key...)
}

// ParseHits reads a report; the keys refer to b.
func ParseHits(b []byte) ([]string, error) {
	if err := checkMessage("hit report", b, hitsSize); err != nil {
		return nil, err
	}
	var keys []string
	for rest := b[hitsSize:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest)-2 < int(binary.LittleEndian.Uint16(rest)) {
			return nil, fmt.Errorf("hit report: key %d is truncated: %w", len(keys), ErrMalformed)
		}
		n := int(binary.LittleEndian.Uint16(rest))
		keys = append(keys, alias(rest[2:2+n]))
		rest = rest[2+n:]
	}
	return keys, nil
}

func checkMessage(name string, b []byte, least int) error {
	if len(b) < least {
		return fmt.Errorf("%s of %d bytes, want at least %d: %w", name, len(b), least, ErrMalformed)
	}
	if b[0] != Layout {
		return fmt.Errorf("%s of layout version %d, want %d: run sidecar and module of the same release: %w",
			name, b[0], Layout, ErrLayout)
	}
	return nil
}
