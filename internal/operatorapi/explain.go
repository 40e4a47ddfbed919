package operatorapi

import (
	"encoding/json"
	"time"

	"github.com/gatehouse/gatehouse/internal/devicelog"
)

// Question is a request to explain.
type Question struct {
	// Rules is the configuration of the edge, JSON, see docs/rules.md; empty: only the object at the URL and
	// the device are described, and there may be no URL.
	Rules  json.RawMessage `json:"rules,omitempty"`
	Method string          `json:"method"`
	// URL is absolute, or a path with query, as the edge sees the target after the proxy's normalization. URL may be
	// the key of an object for a device, a host or in a language.
	URL     string      `json:"url"`
	Headers [][2]string `json:"headers,omitempty"`
	// Device asks for the answer to this device with its right secret; credentials and tokens in Headers are then
	// ignored.
	Device string `json:"device,omitempty"`
}

// Explanation says how the edge answers a request, and why.
type Explanation struct {
	Warning string `json:"warning,omitempty"` // why the rest may not hold
	// VirtualHost is the name of the virtual host whose rules judge the request, and Domain the matching domain; "":
	// none.
	VirtualHost string `json:"virtual_host,omitempty"`
	Domain      string `json:"domain,omitempty"`
	Rule        *Rule  `json:"rule,omitempty"` // nil: no rule governs the request
	Answer      Answer `json:"answer,omitzero"`
	// IfRight is the answer once the sidecar has verified the credential, if it is right.
	IfRight *Answer `json:"if_right,omitempty"`
	// Key is the cache key; "": the request has none.
	Key    string  `json:"key,omitempty"`
	Object *Object `json:"object,omitempty"`
	Device *Device `json:"device,omitempty"`
}

// Rule is the rule that governs a request.
type Rule struct {
	Name        string   `json:"name"`
	Index       int      `json:"index"`
	Match       string   `json:"match"`
	Permissions []string `json:"permissions,omitempty"` // that it requires
	Auth        bool     `json:"auth"`
	Trial       bool     `json:"trial"` // of its auth: it isn't enforced
	Cache       bool     `json:"cache"`
	Session     bool     `json:"session"` // it issues tokens
	// OriginHeaders: the rule sends headers that act on the whole origin.
	OriginHeaders bool `json:"origin_headers"`
}

// Answer is the edge's answer to a request.
type Answer struct {
	// Action is reply, pass (upstream), verify, fetch or exchange (ask the sidecar); of a key serve or never.
	Action      string `json:"action"`
	Status      int    `json:"status,omitempty"`
	Reason      string `json:"reason,omitempty"`       // of the access log
	CacheStatus string `json:"cache_status,omitempty"` // of a response from upstream
	Text        string `json:"text"`
	// Enforced is the answer if all rules and defaults were enforced, nil for the same.
	Enforced *Answer `json:"enforced,omitempty"`
}

// Object is an object in Redis, the sidecar and the edge.
type Object struct {
	Redis   Version         `json:"redis"`
	Sidecar ObjectAtSidecar `json:"sidecar"`
	Edge    ObjectAtEdge    `json:"edge"`
	// NotSent are the names of the object's headers that answers lack, because such headers act on the whole origin and
	// the rule has no cache.origin_headers.
	NotSent []string `json:"not_sent,omitempty"`
}

// Version is a record in Redis.
type Version struct {
	Version     uint64 `json:"version"` // 0: there is none
	PublishedMS int64  `json:"published_ms,omitempty"`
	TTLMS       int64  `json:"ttl_ms,omitempty"`
	ETag        string `json:"etag,omitempty"`
	Deleted     bool   `json:"deleted,omitempty"`
	Disabled    bool   `json:"disabled,omitempty"`
	Revoked     bool   `json:"revoked,omitempty"`
	Error       string `json:"error,omitempty"` // why it can't be read
}

// Device is a device in Redis, the sidecar and the edge.
type Device struct {
	ID          string          `json:"id"`
	Redis       Version         `json:"redis"`
	Sidecar     DeviceAtSidecar `json:"sidecar"`
	Permissions []string        `json:"permissions"`
	Edge        DeviceAtEdge    `json:"edge"`
	LastSeen    *time.Time      `json:"last_seen,omitempty"` // by any sidecar, if Redis has it and permits to read it
	// Failed are the wrong secrets that sidecars verified since yesterday, if Redis stores them and permits the read.
	Failed []devicelog.FailedAttempts `json:"failed_attempts,omitempty"`
	Held   []Hold                     `json:"held,omitempty"` // where it is held back; without a device: new devices are
}

// ObjectAtSidecar is the sidecar's knowledge about a key.
type ObjectAtSidecar struct {
	Version     uint64 `json:"version"` // 0: none is known
	PublishedMS int64  `json:"published_ms"`
	// Place is "held", "left_out" (no room in the budget), "deleted", "purged", "expired" or "unknown".
	Place string `json:"place"`
	// Stale: the object was purged softly.
	Stale bool `json:"stale,omitempty"`
}

// ObjectAtEdge is the object that the edge has at a key, or will have.
type ObjectAtEdge struct {
	Version     uint64 `json:"version"` // 0: no object
	PublishedMS int64  `json:"published_ms"`
	// Pending: the edge has not acknowledged this version, or the object's removal, yet.
	Pending bool `json:"pending"`
}

// DeviceAtSidecar is the sidecar's knowledge about a device, without secrets.
type DeviceAtSidecar struct {
	// Refusal is why the device can't authenticate, as in gatehouse_verifications_total; "": it can.
	Refusal string    `json:"refusal,omitempty"`
	Version uint64    `json:"version"` // of the record; 0: no record is known
	Expires time.Time `json:"not_after,omitzero"`
	// Refused is the last refusal under this record, nil for none. The edge refuses some by itself.
	Refused *Refused `json:"last_refused,omitempty"`
	// OldUntil is when the secrets before the last rotation end; zero: the device has only one secret, or no secret
	// ends.
	OldUntil time.Time `json:"old_until,omitzero"`
	// Pinned: bcrypt confirmed a secret lately, and the secret needs no bcrypt until this time.
	Pinned time.Time `json:"pinned_until,omitzero"`
	// Sources is the number of addresses, at most 4, at which the limits don't apply to the device.
	Sources int `json:"known_addresses"`
}

// Refused is a refusal of a device.
type Refused struct {
	Reason string    `json:"reason"` // as in gatehouse_verifications_total
	Text   string    `json:"text"`
	At     time.Time `json:"at"`
	From   string    `json:"from,omitempty"` // the client's address
}

// DeviceAtEdge is what the edge has about a device, or will have.
type DeviceAtEdge struct {
	Listed bool `json:"listed"` // the edge knows that it is registered
	New    bool `json:"new"`    // it never authenticated
	Allows int  `json:"allow_verdicts"`
	Denies int  `json:"deny_verdicts"`
}
