// Package snapshot writes and reads snapshots: files with the objects, the purges and the ids of the devices of a
// namespace, as a follower has them at a position of each shard. A sidecar that starts continues from there. Redis has
// the SHA-256 of each valid snapshot, so a snapshot may be kept where others can write.
package snapshot

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// A snapshot is magic, the records of each shard, the [Contents] in JSON, their length in four bytes, and endMagic. A
// record is its length and strings: the member, then names and values of the fields of Redis's hash. A device has no
// fields. Purges come first. Lengths are unsigned varints.
const (
	magic    = "gatehouse snapshot 1\n"
	endMagic = "\ngatehouse snapshot end\n"
	tailSize = 4 + len(endMagic)
	// maxContents bounds the contents, of all shards.
	maxContents = 64 << 10
	// maxRecord bounds a record: the readers of Redis accept no larger one.
	maxRecord = 8 << 20
)

const (
	// MaxAge is the age from which a snapshot counts no more: tombstones written since may have expired.
	MaxAge = contract.TombstoneLife - time.Hour
	// maxRegistered is the number of valid snapshots, the newest ones.
	maxRegistered = 16
)

// Contents describes a snapshot.
type Contents struct {
	// Namespace is the namespace of the records, "": the default one.
	Namespace string `json:"namespace"`
	// Shards has what the snapshot has of each shard.
	Shards []Shard `json:"shards"`
}

// Shard is the position of a shard's records: all writes up to Seq, and maybe some later ones.
type Shard struct {
	// DataEpoch is the data epoch of Redis; "": the shard was empty.
	DataEpoch string `json:"data_epoch"`
	// Seq is the number of the last write.
	Seq uint64 `json:"seq"`
	// Digest is the digest of this write, "" if unknown.
	Digest string `json:"digest"`
	// TakenMS is when the position was read, in unix milliseconds of Redis.
	TakenMS int64 `json:"taken_ms"`
	// Objects is the number of objects, without tombstones.
	Objects int `json:"objects"`
	// Begin and End are the bytes of the shard's records in the file.
	Begin int64 `json:"begin"`
	// End is the end of them.
	End int64 `json:"end"`
}

// encoder writes a snapshot. The first error counts.
type encoder struct {
	to     *bufio.Writer
	sum    hash.Hash
	size   int64
	record []byte
}

func newEncoder(to io.Writer) *encoder {
	e := &encoder{sum: sha256.New()}
	e.to = bufio.NewWriterSize(io.MultiWriter(to, e.sum), 1<<20)
	e.write([]byte(magic))
	return e
}

// write writes to the buffer, whose error Flush returns.
func (e *encoder) write(b []byte) {
	e.to.Write(b)
	e.size += int64(len(b))
}

// add writes a record; fields are alternately names and values.
func (e *encoder) add(m contract.Member, fields map[string]string) {
	e.record = appendString(e.record[:0], m.String())
	for name, value := range fields {
		e.record = appendString(appendString(e.record, name), value)
	}
	e.write(binary.AppendUvarint(nil, uint64(len(e.record))))
	e.write(e.record)
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// end writes the contents, and returns the snapshot's SHA-256 in hex.
func (e *encoder) end(c Contents) (string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	e.write(text)
	e.write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
	e.write([]byte(endMagic))
	if err := e.to.Flush(); err != nil {
		return "", err
	}
	return hex.EncodeToString(e.sum.Sum(nil)), nil
}
