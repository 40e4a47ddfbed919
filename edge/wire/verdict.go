package wire

import "encoding/binary"

// Outcome is the result of a verification.
type Outcome uint8

// The outcomes. Only Allow and Deny are stored; the rest are answers to calls. Throttled is like Unavailable, and the
// sidecar refuses all secrets of this device from this source for a while. Away is like Unavailable, but an authority
// gave no answer, so verdict_grace applies.
const (
	Allow       Outcome = 1
	Deny        Outcome = 2
	Unavailable Outcome = 3
	Throttled   Outcome = 4
	Away        Outcome = 5
)

// String returns the outcome for logs and metrics, where Throttled and Away are unavailable, too.
func (o Outcome) String() string {
	switch o {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	default:
		return "unavailable"
	}
}

// Verdict is the stored verification of a credential.
type Verdict struct {
	Digest         Digest
	Permissions    string // the device's permission names in byte order, joined by commas
	ExpiresMS      int64  // unix ms; from this time the verdict is invalid
	RefreshAfterMS int64  // unix ms; from this time one verification runs in the background; 0: never
	NotAfterMS     int64  // unix ms, below 2^48; from this time the device is refused; 0: never
	Outcome        Outcome
}

const (
	verdictSize = 44
	deviceSize  = 8
	closedBit   = 1
	newBit      = 2
)

// Device is the entry of a registered device.
type Device struct {
	Tag uint64 // see [Keys.Device]
	// Closed means that the record has the verdict on the device's only right secret.
	Closed bool
	// New means that the device never authenticated: the entry is not closed.
	New bool
}

// AppendVerdicts appends a bucket of verdicts and devices to dst; a bucket without any is a tombstone.
func AppendVerdicts(dst []byte, epoch uint64, verdicts []Verdict, devices []Device) []byte {
	start := len(dst)
	dst = appendHeader(dst, RegionVerdicts, len(verdicts), uint32(len(devices)), epoch)
	for i := range verdicts {
		v := &verdicts[i]
		dst = append(dst, v.Digest[:]...)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.ExpiresMS))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.RefreshAfterMS))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v.Outcome)|uint64(v.NotAfterMS)<<16)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v.Permissions)))
	}
	for _, device := range devices {
		bits := device.Tag &^ (closedBit | newBit)
		switch {
		case device.Closed:
			bits |= closedBit
		case device.New:
			bits |= newBit
		}
		dst = binary.LittleEndian.AppendUint64(dst, bits)
	}
	for i := range verdicts {
		dst = append(dst, verdicts[i].Permissions...)
	}
	return pad(dst, start)
}

// CredentialStatus is a credential's status in the device's bucket.
type CredentialStatus uint8

// The statuses.
const (
	Unreadable   CredentialStatus = iota // unknown: no usable record
	Found                                // a verdict
	Closed                               // no verdict, and the device has another secret, the only right one
	Registered                           // no verdict, and the device is registered
	New                                  // no verdict, and the device is registered, but never authenticated
	Unregistered                         // no verdict, and the device is not registered
)

// FindVerdict looks up a credential in the device's bucket; device is the device's tag. It returns a verdict if the
// status is [Found], and the verdict's names refer to rec; the caller checks the expiry. It allocates nothing. The
// comparison of digests need not take constant time: digests are outputs of a keyed function of the secret, so the time
// reveals nothing.
func FindVerdict(rec []byte, epoch uint64, d *Digest, device uint64) (Verdict, CredentialStatus, error) {
	if rec == nil {
		return Verdict{}, Unreadable, ErrNotFound
	}
	if err := checkEpoch(rec, RegionVerdicts, epoch); err != nil {
		return Verdict{}, Unreadable, err
	}
	count, devices := int(binary.LittleEndian.Uint16(rec[2:])), binary.LittleEndian.Uint32(rec[4:])
	end := headerSize + uint64(count)*verdictSize + uint64(devices)*deviceSize
	if uint64(len(rec)) < end {
		return Verdict{}, Unreadable, ErrMalformed
	}
	var found []byte
	var names uint64
	for i := range count {
		b := rec[headerSize+i*verdictSize:][:verdictSize]
		if found == nil && Digest(b[:16]) == *d {
			found, names = b, end
		}
		end += uint64(binary.LittleEndian.Uint32(b[40:]))
	}
	if uint64(len(rec)) < end {
		return Verdict{}, Unreadable, ErrMalformed
	}
	if found == nil {
		return Verdict{}, deviceStatus(rec[headerSize+count*verdictSize:][:int(devices)*deviceSize], device), nil
	}
	v := Verdict{
		Digest:         *d,
		Permissions:    alias(rec[names:][:binary.LittleEndian.Uint32(found[40:])]),
		ExpiresMS:      int64(binary.LittleEndian.Uint64(found[16:])),
		RefreshAfterMS: int64(binary.LittleEndian.Uint64(found[24:])),
		NotAfterMS:     int64(binary.LittleEndian.Uint64(found[32:]) >> 16),
		Outcome:        Outcome(found[32]),
	}
	if v.Outcome != Allow && v.Outcome != Deny {
		return Verdict{}, Unreadable, ErrMalformed
	}
	return v, Found, nil
}

// deviceStatus returns the status of a device in a list of devices.
func deviceStatus(devices []byte, device uint64) CredentialStatus {
	for ; len(devices) > 0; devices = devices[deviceSize:] {
		switch bits := binary.LittleEndian.Uint64(devices); bits ^ device {
		case 0:
			return Registered
		case newBit:
			return New
		case closedBit:
			return Closed
		}
	}
	return Unregistered
}
