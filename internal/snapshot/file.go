package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"unsafe"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// chunkSize is the number of bytes that are checked at once.
const chunkSize = 1 << 20

// File is an open snapshot. Nobody knows whether it is valid until its SHA-256 was compared with Redis's.
type File struct {
	Contents
	// SHA256 is that of the file, in hex.
	SHA256 string

	file   *os.File
	size   int64
	seed   maphash.Seed
	chunks []uint64 // the hash of each chunk when SHA256 was computed
}

// Open reads a snapshot from a path, or from a URL: http, https or s3. What comes by a URL is kept in a temporary file
// until Close.
func Open(ctx context.Context, source string) (*File, error) {
	file, err := fetch(ctx, source)
	if err != nil {
		return nil, err
	}
	f := &File{file: file, seed: maphash.MakeSeed()}
	if err := f.readWhole(); err != nil {
		file.Close()
		return nil, err
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() { f.file.Close() }

// readWhole computes the hashes, and reads the contents.
func (f *File) readWhole() error {
	sum, chunk := sha256.New(), make([]byte, chunkSize)
	tail := make([]byte, 0, chunkSize+maxContents+tailSize) // the last bytes, at least those of the contents
	for first := true; ; first = false {
		n, err := io.ReadFull(f.file, chunk)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if first && !bytes.HasPrefix(chunk[:n], []byte(magic)) {
			return errors.New("it is no snapshot of this version: its first line is another one")
		}
		sum.Write(chunk[:n])
		f.chunks = append(f.chunks, maphash.Bytes(f.seed, chunk[:n]))
		f.size += int64(n)
		tail = append(tail[:0], tail[max(0, len(tail)-maxContents-tailSize):]...)
		tail = append(tail, chunk[:n]...)
		if n < chunkSize {
			break
		}
	}
	f.SHA256 = hex.EncodeToString(sum.Sum(nil))
	rest, ended := bytes.CutSuffix(tail, []byte(endMagic))
	if !ended || len(rest) < 4 {
		return errors.New("it is truncated: its end is missing")
	}
	at := len(rest) - 4
	length := binary.BigEndian.Uint32(rest[at:])
	if length > maxContents || int(length) > at {
		return errors.New("it is damaged: the length of its contents is wrong")
	}
	if err := json.Unmarshal(rest[at-int(length):at], &f.Contents); err != nil {
		return fmt.Errorf("it is damaged: its contents can't be read: %w", err)
	}
	return nil
}

// Size returns the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Visit calls visit with each record of a shard, until visit returns false: purges first, then devices, which have no
// fields, then objects. The fields' names and values change once visit returns: visit must copy what it keeps.
func (f *File) Visit(shard int, visit func(m contract.Member, fields map[string]string) bool) error {
	s := section{file: f, at: f.Shards[shard].Begin, end: f.Shards[shard].End}
	fields := map[string]string{}
	for {
		record, err := s.next()
		if err != nil || record == nil {
			return err
		}
		clear(fields)
		m, err := parseRecord(unsafe.String(unsafe.SliceData(record), len(record)), fields)
		if err != nil {
			return err
		}
		if !visit(m, fields) {
			return nil
		}
	}
}

var errRecord = errors.New("a record of the snapshot can't be read")

// parseRecord adds a record's fields to fields, and returns the member.
func parseRecord(record string, fields map[string]string) (contract.Member, error) {
	member, rest, ok := cutString(record)
	for ok && rest != "" {
		var name, value string
		if name, rest, ok = cutString(rest); ok {
			value, rest, ok = cutString(rest)
			fields[name] = value
		}
	}
	if !ok {
		return contract.Member{}, errRecord
	}
	return contract.ParseMember(member)
}

// cutString returns the first string of a record, and what follows.
func cutString(s string) (first, rest string, ok bool) {
	size := uint64(0)
	for i, shift := 0, 0; i < len(s) && shift < 63; i, shift = i+1, shift+7 {
		size |= uint64(s[i]&0x7f) << shift
		if s[i] < 0x80 {
			if s = s[i+1:]; size > uint64(len(s)) {
				return "", "", false
			}
			return s[:size], s[size:], true
		}
	}
	return "", "", false
}

// section reads a part of a file, and checks each chunk before it counts: somebody may write to the file.
type section struct {
	file    *File
	at, end int64  // of the file, not read yet
	buffer  []byte // one for all chunks: a new one for each costs more time than what is done with it
	unread  []byte // the end of buffer
}

var errChanged = errors.New("the snapshot was changed while it was read")

// next returns the next record, until the next call; nil: there is none.
func (s *section) next() ([]byte, error) {
	for {
		size, n := binary.Uvarint(s.unread)
		switch {
		case n < 0 || size > 2*maxRecord:
			return nil, errRecord
		case n > 0 && uint64(len(s.unread)-n) >= size:
			end := n + int(size)
			record := s.unread[n:end:end]
			s.unread = s.unread[end:]
			return record, nil
		case s.at < s.end:
			if err := s.readChunk(); err != nil {
				return nil, err
			}
		case len(s.unread) > 0:
			return nil, errRecord
		default:
			return nil, nil
		}
	}
}

// readChunk adds the next chunk to unread, or its part of the section.
func (s *section) readChunk() error {
	if s.at < 0 || s.at >= s.file.size {
		return errRecord
	}
	index := s.at / chunkSize
	begin := index * chunkSize
	size := int(min(chunkSize, s.file.size-begin))
	s.buffer = slices.Grow(append(s.buffer[:0], s.unread...), size)
	from := len(s.buffer)
	chunk := s.buffer[from : from+size]
	if _, err := s.file.file.ReadAt(chunk, begin); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if maphash.Bytes(s.file.seed, chunk) != s.file.chunks[index] {
		return errChanged
	}
	end := min(s.end, begin+int64(size))
	s.buffer = append(s.buffer, chunk[s.at-begin:end-begin]...) // in place
	s.unread, s.at = s.buffer, end
	return nil
}
