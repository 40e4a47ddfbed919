package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"syscall"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// keptSecret is a generated secret with the hash of the device's record.
type keptSecret struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
	Hash   string `json:"hash"`
}

// maxSecretLine bounds a line of the file in bytes.
const maxSecretLine = 4096

// secretsFile has generated secrets as JSON lines. Each secret is written before its device. A later run finds secrets
// by id.
type secretsFile struct {
	file    *os.File
	end     int64
	seed    maphash.Seed
	offsets map[uint64]int64 // by the id's hash; only of lines from earlier runs
}

// openSecrets creates the file, readable by its owner only. With resume the file may exist, and a last line that an
// interruption cut off is removed.
func openSecrets(name string, resume bool) (*secretsFile, error) {
	flags := os.O_RDWR | os.O_CREATE | syscall.O_NOFOLLOW
	if !resume {
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(name, flags, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, usagef("--secrets %s: exists; with --resume its secrets count", printable(name))
	}
	if err != nil {
		return nil, err
	}
	s := &secretsFile{file: file, seed: maphash.MakeSeed(), offsets: map[uint64]int64{}}
	if err := s.loadOffsets(); err != nil {
		file.Close()
		return nil, fmt.Errorf("--secrets %s: %w", printable(name), err)
	}
	return s, nil
}

func (s *secretsFile) loadOffsets() error {
	if err := syscall.Flock(int(s.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("is another import writing to it? %w", err)
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || !ok || int(owner.Uid) != os.Geteuid() {
		return usagef("mode %v: want a file of yours that only its owner can read and write", info.Mode())
	}
	lines := bufio.NewReaderSize(s.file, maxSecretLine)
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		last := errors.Is(err, io.EOF)
		if last && isCutOff(line) {
			return s.file.Truncate(s.end)
		}
		var k keptSecret
		if err == nil || last {
			k, err = parseKeptSecret(line)
		}
		if err != nil {
			return usagef("line %d: %w", n, err)
		}
		s.offsets[maphash.String(s.seed, k.ID)] = s.end
		s.end += int64(len(line))
		if last { // complete but for the line end
			n, err := s.file.WriteAt([]byte("\n"), s.end)
			s.end += int64(n)
			return err
		}
	}
}

// isCutOff reports whether rest, the end of the file, may be empty or the start of a line that an interruption cut off.
func isCutOff(rest []byte) bool {
	begin := []byte(`{"id":"`)
	return (bytes.HasPrefix(rest, begin) || bytes.HasPrefix(begin, rest)) && !json.Valid(rest)
}

func parseKeptSecret(line []byte) (k keptSecret, err error) {
	if json.Unmarshal(line, &k) != nil || contract.CheckHash(k.Hash) != nil {
		return keptSecret{}, errors.New("is no line of an import's secrets")
	}
	return k, nil
}

// findSecret returns the secret that an earlier run wrote for a device.
func (s *secretsFile) findSecret(id string) (k keptSecret, found bool, err error) {
	offset, found := s.offsets[maphash.String(s.seed, id)]
	if !found {
		return keptSecret{}, false, nil
	}
	line := make([]byte, maxSecretLine)
	n, err := s.file.ReadAt(line, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return keptSecret{}, false, err
	}
	line, _, _ = bytes.Cut(line[:n], []byte("\n"))
	k, err = parseKeptSecret(line)
	return k, k.ID == id, err
}

// appendSecrets appends secrets, and returns once the file is on disk.
func (s *secretsFile) appendSecrets(secrets []keptSecret) error {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	for _, k := range secrets {
		if err := lines.Encode(k); err != nil {
			return err
		}
	}
	n, err := s.file.WriteAt(b.Bytes(), s.end)
	s.end += int64(n)
	return errors.Join(err, s.file.Sync())
}

func (s *secretsFile) close() error { return s.file.Close() }
