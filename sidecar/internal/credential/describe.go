package credential

import "time"

// Description is the sidecar's knowledge about a device, without secrets.
type Description struct {
	// Refusal is why the device can't authenticate, as in gatehouse_verifications_total; "": the device can
	// authenticate.
	Refusal Reason
	Version uint64 // of its record; 0: no record is known
	Expires time.Time
	// Refused is the last refusal under this record, nil for none. The edge itself refuses some credentials without a
	// call.
	Refused *Refused
	// OldUntil is when the secrets before the last rotation end; zero: the device has a single secret, or no secret
	// ends.
	OldUntil time.Time
	// Permissions has a bit for each name.
	Permissions uint64
	// Pinned: a secret was confirmed by bcrypt, and needs no bcrypt until this time.
	Pinned time.Time
	// Sources is the number of addresses, at most 4, at which the limits don't apply to the device.
	Sources int
}

// Refused is a refusal of a device.
type Refused struct {
	Reason Reason // as in gatehouse_verifications_total
	Text   string
	At     time.Time
	From   string // the client's address
}

// Describe returns the sidecar's knowledge about a device.
func (v *Verifier) Describe(id string) (d Description) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	_, d.Refusal = v.findAdmissible(id, now)
	if v.authorityDecides(id, d.Refusal) {
		d.Refusal = reasonNoAuthority
		if known := v.answers.devices[id]; known != nil {
			for _, x := range known.answers {
				if x.session != "" && now.Before(x.ends) {
					d.Refusal, d.Permissions, d.Expires = "", x.permissions, x.notAfter
				}
			}
		}
		return d
	}
	r := v.records[id]
	if r == nil {
		return d
	}
	d.Version, d.Expires, d.Permissions, d.Sources = r.version, r.notAfter, r.permissions, len(r.sources)
	if r.hasOverlap() {
		d.OldUntil = r.oldUntil
	}
	if r.refused != nil {
		last := *r.refused
		last.Text = refusals[last.Reason]
		d.Refused = &last
	}
	for i := range r.hashes {
		if until := r.hashes[i].pinnedUntil; until.After(now) && until.After(d.Pinned) {
			d.Pinned = until
		}
	}
	return d
}
