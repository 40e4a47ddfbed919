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
	// Permissions are names in byte order, joined by commas.
	Permissions string
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
func (d *Devices) Describe(id string) (known Description) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	_, known.Refusal = d.findAdmissible(id, now)
	if d.config.authorityDecides(id, known.Refusal) {
		known.Refusal = reasonNoAuthority
		if device := d.answers.devices[id]; device != nil {
			for _, x := range device.answers {
				if x.session != "" && now.Before(x.ends) {
					known.Refusal, known.Permissions, known.Expires = "", x.permissions, x.notAfter
				}
			}
		}
		return known
	}
	r := d.records.all[id]
	if r == nil {
		return known
	}
	known.Version, known.Expires, known.Permissions, known.Sources = r.version, r.notAfter, r.permissions, len(r.sources)
	if r.hasOverlap() {
		known.OldUntil = r.oldUntil
	}
	if r.refused != nil {
		last := *r.refused
		last.Text = refusals[last.Reason]
		known.Refused = &last
	}
	for i := range r.hashes {
		if until := r.hashes[i].pinnedUntil; until.After(now) && until.After(known.Pinned) {
			known.Pinned = until
		}
	}
	return known
}
