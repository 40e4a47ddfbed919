package wire

import "encoding/binary"

const (
	stateSize           = 80
	flagDevicesComplete = 1
)

// State is the record for reading the other records.
type State struct {
	Epoch uint64 // never 0
	// InStepMS is when the edge was last known to be in step with Redis, unix ms.
	InStepMS int64
	// HeartbeatMS is the time at which the sidecar sent this state, unix ms.
	HeartbeatMS int64
	// The next three may be another sidecar's in a state from an edge, and may be wrong: never allocate by them.
	ObjectBuckets  uint32
	VerdictBuckets uint32
	// BodySlots is the number of slots ever written in this memory: a new sidecar blanks the unused slots.
	BodySlots uint32
	// DevicesComplete means that every device that may authenticate is in a bucket of this epoch: an absent device is
	// unknown.
	DevicesComplete bool
	Keys            Keys
	Purges          []Purge // under way, at most MaxPurges
}

// AppendState appends the state record to dst.
func AppendState(dst []byte, s *State) []byte {
	dst = appendHeader(dst, RegionState, 0, s.ObjectBuckets, s.Epoch)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.InStepMS))
	dst = binary.LittleEndian.AppendUint32(dst, s.VerdictBuckets)
	dst = binary.LittleEndian.AppendUint32(dst, s.BodySlots)
	dst = append(dst, s.Keys.Placement[:]...)
	dst = append(dst, s.Keys.Credential[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.HeartbeatMS))
	var flags byte
	if s.DevicesComplete {
		flags = flagDevicesComplete
	}
	dst = append(dst, flags, byte(len(s.Purges)), 0, 0, 0, 0, 0, 0)
	for i := range s.Purges {
		dst = appendPurge(dst, &s.Purges[i])
	}
	return dst
}

// ParseState reads a state record, without references to rec.
func ParseState(rec []byte) (State, error) {
	epoch, err := RecordEpoch(rec, RegionState)
	if err != nil {
		return State{}, err
	}
	if len(rec) < stateSize || epoch == 0 {
		return State{}, ErrMalformed
	}
	if binary.LittleEndian.Uint16(rec[2:]) != 0 || rec[72]&^flagDevicesComplete != 0 {
		return State{}, ErrMalformed
	}
	s := State{
		Epoch:          epoch,
		InStepMS:       int64(binary.LittleEndian.Uint64(rec[16:])),
		HeartbeatMS:    int64(binary.LittleEndian.Uint64(rec[64:])),
		ObjectBuckets:  binary.LittleEndian.Uint32(rec[4:]),
		VerdictBuckets: binary.LittleEndian.Uint32(rec[24:]),
		BodySlots:      binary.LittleEndian.Uint32(rec[28:]),

		DevicesComplete: rec[72]&flagDevicesComplete != 0,
	}
	copy(s.Keys.Placement[:], rec[32:])
	copy(s.Keys.Credential[:], rec[48:])
	if s.Purges, err = parsePurges(rec[stateSize:], int(rec[purgesAt])); err != nil {
		return State{}, err
	}
	return s, nil
}
