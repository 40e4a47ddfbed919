package edgemem

import "github.com/gatehouse/gatehouse/edge/wire"

// Applying a batch blocks the worker for about a millisecond at most, so bytes and operations of a batch are bounded. A
// body over the bound is sent alone. Many edges have smaller batches, since each edge's is in memory until the edge has
// answered.
const (
	maxBatch    = 256 << 10
	minMaxBatch = 64 << 10 // smaller batches take the edge noticeably longer
	maxBatches  = 4 << 20  // of all edges
	maxOps      = 512
	// maxVerdictOps reserves room for objects when verdicts, which are sent first, keep changing.
	maxVerdictOps = maxOps / 2
)

// Bytes of each kind of record besides keys, bodies and headers.
const (
	opSize         = 12 // before each record in a batch
	bodySize       = 24
	bucketSize     = 16
	objectSize     = 44
	variantSize    = 20
	verdictSize    = 44
	deviceSize     = 8
	recordOverhead = 96 // of an entry of the store: key, string header, node
)

// maxBatchBytes returns the maximum size of a batch for one of several edges.
func maxBatchBytes(edges int) int { return min(max(maxBatches/max(edges, 1), minMaxBatch), maxBatch) }

// batch is a batch being built.
type batch struct {
	bytes    []byte
	maxBytes int
	ops      int
	records  int // operations without state records
}

// hasRoom reports whether a record of size bytes fits. The first record always fits.
func (b *batch) hasRoom(size int) bool {
	return b.records == 0 || b.ops < maxOps && len(b.bytes)+opSize+size <= b.maxBytes
}

func (b *batch) addRecord(region wire.Region, index uint32, write func(dst []byte) []byte) {
	b.bytes = wire.AppendOp(b.bytes, region, index, write)
	b.ops++
	if region != wire.RegionState {
		b.records++
	}
}

func emptyBucket(dst []byte, region wire.Region, epoch uint64) []byte {
	if region == wire.RegionVerdicts {
		return wire.AppendVerdicts(dst, epoch, nil, nil)
	}
	start := len(dst)
	return wire.FinishRecord(wire.AppendObjectsHeader(dst, epoch, 0), start)
}
