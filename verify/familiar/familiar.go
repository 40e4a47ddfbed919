// Package familiar stores in a file the addresses from which devices authenticated, so that the addresses survive a
// restart of the sidecar. The limits on wrong secrets exempt a device at a familiar address. Without the file, after a
// restart, one bad client behind a NAT would exhaust the limit for all devices behind the NAT.
//
// The file has no secret, id or address of a device, but keyed hashes of id and address, and the key. A reader of the
// file can test whether a given device authenticated from a given address. Only authenticated devices add entries. An
// entry only affects a place in a queue, so the file is not synced: devices add again what a crash loses.
package familiar

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
)

// The file: magic, key, and pairs of a device and an address, u64 each, little-endian, oldest first.
const (
	magic    = "gatehouse known1"
	keySize  = 16
	pairSize = 16
	head     = len(magic) + keySize
)

// Bounds.
const (
	// PerDevice is the number of addresses stored for a device, the newest.
	PerDevice = 4
	// maxPairs is the number of pairs stored in total, the newest.
	maxPairs = 1 << 20
	// maxObsolete is the number of obsolete pairs in the file, beyond the number of valid pairs, at which the file is
	// rewritten.
	maxObsolete = 1 << 12
	// maxPending bounds the pairs that wait to be written.
	maxPending = 1 << 16
)

type pair struct{ device, source uint64 }

// Sources is the file, safe for concurrent use.
type Sources struct {
	path string
	log  *slog.Logger
	key  [keySize]byte
	file *os.File // used by Run after Open; nil: nothing is stored
	kept int      // valid pairs in the file at the last rewrite
	size int      // pairs in the file

	mu       sync.Mutex // protects all below
	restored []pair     // what was in the file, by device, oldest first
	pending  []pair
	wake     chan struct{} // capacity 1
}

// Open reads or creates the file at path. If Open fails, or another process has locked the file, Open logs the reason,
// and nothing is stored across restarts.
func Open(path string, log *slog.Logger) *Sources {
	s := &Sources{path: path, log: log, wake: make(chan struct{}, 1)}
	if err := s.openFile(); err != nil {
		log.Warn("addresses of authenticated devices will not survive a restart", "file", path, "error", err)
		s.closeFile()
		s.restored = nil
		rand.Read(s.key[:]) // never fails
	}
	return s
}

func (s *Sources) openFile() error {
	file, err := openLocked(s.path)
	if err != nil {
		return err
	}
	s.file = file
	pairs, err := s.readPairs()
	if err != nil && !errors.Is(err, errForeign) {
		return err
	}
	if errors.Is(err, errForeign) {
		rand.Read(s.key[:])
	}
	s.restored = newestPairs(pairs)
	return s.rewriteFile(s.restored)
}

// openLocked opens and locks a file readable only by this user, and fails if another process holds the lock.
func openLocked(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s, which another process may hold: %w", path, err)
	}
	return file, nil
}

var errForeign = errors.New("not a file of the sidecar")

// readPairs returns the pairs in the file, oldest first. It reads a truncated file as far as possible.
func (s *Sources) readPairs() ([]pair, error) {
	info, err := s.file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", s.path)
	}
	if most := int64(head + 4*maxPairs*pairSize); info.Size() > most {
		return nil, errForeign
	}
	b, err := io.ReadAll(io.NewSectionReader(s.file, 0, info.Size()))
	if err != nil {
		return nil, err
	}
	if len(b) < head || string(b[:len(magic)]) != magic {
		return nil, errForeign
	}
	copy(s.key[:], b[len(magic):])
	var pairs []pair
	for b = b[head:]; len(b) >= pairSize; b = b[pairSize:] {
		pairs = append(pairs, pair{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return pairs, nil
}

// newestPairs returns the valid elements of pairs, by device; it reuses the memory of pairs.
func newestPairs(pairs []pair) []pair {
	if len(pairs) > maxPairs {
		pairs = pairs[len(pairs)-maxPairs:]
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		switch {
		case a.device < b.device:
			return -1
		case a.device > b.device:
			return 1
		}
		return 0
	})
	kept := pairs[:0]
	for len(pairs) > 0 {
		n := 1
		for n < len(pairs) && pairs[n].device == pairs[0].device {
			n++
		}
		of := pairs[:n]
		pairs = pairs[n:]
		var last []pair
		for i := len(of) - 1; i >= 0 && len(last) < PerDevice; i-- {
			if !slices.Contains(last, of[i]) {
				last = append(last, of[i])
			}
		}
		slices.Reverse(last)
		kept = append(kept, last...)
	}
	return kept
}

// rewriteFile replaces the file with a new file of these pairs.
func (s *Sources) rewriteFile(pairs []pair) error {
	next := s.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := openLocked(next)
	if err != nil {
		return err
	}
	b := append(append(make([]byte, 0, head+len(pairs)*pairSize), magic...), s.key[:]...)
	if _, err = file.Write(appendPairs(b, pairs)); err == nil {
		err = os.Rename(next, s.path)
	}
	if err != nil {
		file.Close()
		_ = os.Remove(next) // on a full volume it would take the rest
		return err
	}
	s.closeFile()
	s.file, s.kept, s.size = file, len(pairs), len(pairs)
	return nil
}

func appendPairs(b []byte, pairs []pair) []byte {
	for _, p := range pairs {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, p.device), p.source)
	}
	return b
}

func (s *Sources) closeFile() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}

// Key returns the key of the hashes of devices and addresses.
func (s *Sources) Key() [keySize]byte { return s.key }

// Of returns the addresses of a device in the file as Open read it, oldest first, at most PerDevice; none after
// [Sources.Restored].
func (s *Sources) Of(device uint64) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, _ := slices.BinarySearchFunc(s.restored, device, func(p pair, device uint64) int {
		if p.device < device {
			return -1
		}
		return 1 // so the search ends at the first of the device
	})
	var of []uint64
	for ; at < len(s.restored) && s.restored[at].device == device; at++ {
		of = append(of, s.restored[at].source)
	}
	return of
}

// Restored releases the contents that Open read; afterwards [Sources.Of] returns none.
func (s *Sources) Restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored = nil
}

// Add stores that a device authenticated from an address, without waiting for the disk.
func (s *Sources) Add(device, source uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending {
		return
	}
	s.pending = append(s.pending, pair{device, source})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run writes added pairs until ctx ends.
func (s *Sources) Run(ctx context.Context) error {
	defer s.closeFile()
	for {
		select {
		case <-s.wake:
			s.writePending()
		case <-ctx.Done():
			s.writePending()
			return nil
		}
	}
}

// writePending appends the pending pairs to the file.
func (s *Sources) writePending() {
	s.mu.Lock()
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	if s.file == nil || len(pending) == 0 {
		return
	}
	// Written after the last complete pair, over a partial one.
	_, err := s.file.WriteAt(appendPairs(nil, pending), int64(head+s.size*pairSize))
	if err == nil {
		s.size += len(pending)
	}
	if err == nil && s.size > 2*s.kept+maxObsolete {
		var pairs []pair
		if pairs, err = s.readPairs(); err == nil {
			err = s.rewriteFile(newestPairs(pairs))
		}
	}
	if err != nil {
		s.log.Warn("addresses of authenticated devices are no longer saved, until the sidecar restarts",
			"file", s.path, "error", err)
		s.closeFile()
	}
}
