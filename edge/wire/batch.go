package wire

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// A batch is the body of POST /v1/apply:
//
//	 0  u8   layout version
//	 1  3    zero
//	 4  u32  operations
//	 8  u64  epoch
//	16  u64  replaces: the epoch that shared memory must hold, 0 for none; mostly the same one
//	24  operations × (u8 region, 3 zero, u32 index, u32 length, record)
//
// A batch is applied whole and in order, or not at all: not if malformed, and not if shared memory holds another epoch
// than replaces. So a late takeover, after another takeover, changes nothing. The answer is the current state record:
// 200 after the batch was applied, 409 for another epoch (with an empty answer if there is no state), 400 with a line
// of text for a malformed batch.
const (
	batchSize = 24
	opSize    = 12
)

// Batch is a parsed sequence of records to write.
type Batch struct {
	Epoch    uint64
	Replaces uint64 // the memory's required epoch, 0 for none
	count    uint32
	ops      []byte
}

// BeginBatch starts a batch in dst, for a memory with the epoch replaces; [AppendOp] adds records.
func BeginBatch(dst []byte, epoch, replaces uint64) []byte {
	dst = append(dst, Layout, 0, 0, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, epoch)
	return binary.LittleEndian.AppendUint64(dst, replaces)
}

// AppendOp adds one record to the batch at the start of b. write appends the record to its argument and returns the
// result.
func AppendOp(b []byte, region Region, index uint32, write func(dst []byte) []byte) []byte {
	b = append(b, byte(region), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, index)
	b = append(b, 0, 0, 0, 0)
	at := len(b)
	b = write(b)
	binary.LittleEndian.PutUint32(b[at-4:], uint32(len(b)-at))
	binary.LittleEndian.PutUint32(b[4:], binary.LittleEndian.Uint32(b[4:])+1)
	return b
}

// ParseBatch checks a whole batch, each record's header included. The batch refers to b.
func ParseBatch(b []byte) (Batch, error) {
	if len(b) < batchSize {
		return Batch{}, fmt.Errorf("batch of %d bytes, want at least %d: %w", len(b), batchSize, ErrMalformed)
	}
	if b[0] != Layout {
		return Batch{}, fmt.Errorf("batch of layout version %d, want %d: run sidecar and module of the same release: %w",
			b[0], Layout, ErrLayout)
	}
	batch := Batch{
		Epoch:    binary.LittleEndian.Uint64(b[8:]),
		Replaces: binary.LittleEndian.Uint64(b[16:]),
		count:    binary.LittleEndian.Uint32(b[4:]),
		ops:      b[batchSize:],
	}
	rest := batch.ops
	for i := range batch.count {
		if len(rest) < opSize {
			return Batch{}, fmt.Errorf("operation %d of %d: truncated header: %w", i, batch.count, ErrMalformed)
		}
		region, length := Region(rest[0]), binary.LittleEndian.Uint32(rest[8:])
		if region >= regions {
			return Batch{}, fmt.Errorf("operation %d: unknown region %d: %w", i, rest[0], ErrMalformed)
		}
		if uint64(length) > uint64(len(rest)-opSize) {
			return Batch{}, fmt.Errorf("operation %d: %d bytes of record, %d are left: %w", i, length,
				len(rest)-opSize, ErrMalformed)
		}
		record := rest[opSize : opSize+int(length)]
		if err := checkOp(region, binary.LittleEndian.Uint32(rest[4:]), record, batch.Epoch); err != nil {
			return Batch{}, fmt.Errorf("operation %d: %s record: %w", i, region, err)
		}
		rest = rest[opSize+int(length):]
	}
	if len(rest) != 0 {
		return Batch{}, fmt.Errorf("%d bytes after the last operation: %w", len(rest), ErrMalformed)
	}
	return batch, nil
}

// checkOp returns an error for a record that no reader could use. It reads a whole state record: with a bad state, the
// edge would use an old state for ever.
func checkOp(region Region, index uint32, record []byte, epoch uint64) error {
	if err := checkEpoch(record, region, epoch); err != nil || region != RegionState {
		return err
	}
	if index != 0 {
		return fmt.Errorf("at index %d, want 0: %w", index, ErrMalformed)
	}
	_, err := ParseState(record)
	return err
}

// Len returns the number of operations.
func (b *Batch) Len() int { return int(b.count) }

// Op is one record with its place. The record refers to the batch.
type Op struct {
	Region Region
	Index  uint32
	Record []byte
}

// Ops returns the operations of a parsed batch, in order.
func (b *Batch) Ops() iter.Seq[Op] {
	return func(yield func(Op) bool) {
		rest := b.ops
		for range b.count {
			length := binary.LittleEndian.Uint32(rest[8:])
			op := Op{Region(rest[0]), binary.LittleEndian.Uint32(rest[4:]), rest[opSize : opSize+int(length)]}
			if !yield(op) {
				return
			}
			rest = rest[opSize+int(length):]
		}
	}
}
