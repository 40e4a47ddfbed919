package familiar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// over opens the file, calls use, and closes it.
func over(t *testing.T, path string, use func(*Sources)) {
	t.Helper()
	s := Open(path, discard)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	use(s)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func (s *Sources) want(t *testing.T, device uint64, want ...uint64) {
	t.Helper()
	if got := s.Of(device); !slices.Equal(got, want) {
		t.Errorf("device %d was let in from %v, want %v", device, got, want)
	}
}

func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	var key [keySize]byte
	over(t, path, func(s *Sources) {
		key = s.Key()
		s.want(t, 1)
		for _, p := range []pair{{1, 10}, {2, 20}, {1, 11}, {1, 10}, {1, 12}, {1, 13}, {1, 14}, {1 << 63, 30}} {
			s.Add(p.device, p.source)
		}
		s.want(t, 1) // only what was there at the start
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file of mode 0600", info, err)
	}
	for range 2 {
		over(t, path, func(s *Sources) {
			if s.Key() != key || key == [keySize]byte{} {
				t.Error("another key")
			}
			s.want(t, 1, 10, 12, 13, 14)
			s.want(t, 2, 20)
			s.want(t, 3)
			s.want(t, 1<<63, 30)
		})
	}
	over(t, path, func(s *Sources) {
		s.Add(2, 21)
		s.Restored()
		s.want(t, 1)
	})
	over(t, path, func(s *Sources) { s.want(t, 2, 20, 21) })
}

// TestFileThatCantBeUsed: an unusable file is replaced or ignored; Open never fails.
func TestFileThatCantBeUsed(t *testing.T) {
	whole := append([]byte(magic+strings.Repeat("k", keySize)), appendPairs(nil, []pair{{1, 10}, {2, 20}})...)
	for name, tt := range map[string]struct {
		bytes []byte
		want  []uint64 // sources of device 1 after it authenticated from 11
	}{
		"whole":          {whole, []uint64{10, 11}},
		"cut":            {whole[:len(whole)-1], []uint64{10, 11}},
		"cut in its key": {whole[:head-1], []uint64{11}},
		"empty":          {nil, []uint64{11}},
		"another's":      {bytes.Repeat([]byte("x"), 1000), []uint64{11}},
		"far too large":  {append(whole, make([]byte, 4*maxPairs*pairSize)...), []uint64{11}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "known")
			require.NoError(t, os.WriteFile(path, tt.bytes, 0o600))
			over(t, path, func(s *Sources) { s.Add(1, 11) })
			over(t, path, func(s *Sources) { s.want(t, 1, tt.want...) })
		})
	}
	dir := t.TempDir()
	for name, path := range map[string]string{"no such directory": dir + "/no/known", "a directory": dir} {
		t.Run(name, func(t *testing.T) {
			over(t, path, func(s *Sources) {
				s.Add(1, 11)
				if s.Key() == [keySize]byte{} {
					t.Error("no key")
				}
			})
		})
	}
}

// TestTwoProcesses: the second process works without the file, which the first has locked.
func TestTwoProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	over(t, path, func(first *Sources) {
		over(t, path, func(second *Sources) {
			if second.Key() == first.Key() {
				t.Error("two have one file")
			}
			second.Add(1, 10)
		})
		first.Add(1, 11)
	})
	over(t, path, func(s *Sources) { s.want(t, 1, 11) })
}

// TestGrowth adds far more pairs than are valid: the file stays small and has the newest.
func TestGrowth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	s := Open(path, discard)
	for i := range uint64(20 * maxObsolete) {
		s.Add(i%7, i)
		if i%100 == 0 {
			s.writePending()
		}
	}
	s.writePending()
	s.closeFile()
	if info, err := os.Stat(path); err != nil || info.Size() > int64(head+(2*7*PerDevice+maxObsolete+100)*pairSize) {
		t.Errorf("got %v, %v, want a small file", info.Size(), err)
	}
	last := uint64(20*maxObsolete - 1)
	over(t, path, func(s *Sources) { s.want(t, last%7, last-21, last-14, last-7, last) })
}

// TestFitsIntoTheChartsVolume: the sidecar's volume in the chart has room for the longest file, and for its
// replacement.
func TestFitsIntoTheChartsVolume(t *testing.T) {
	const longest, next = head + (2*maxPairs+maxObsolete+maxPending)*pairSize, head + maxPairs*pairSize
	text, err := os.ReadFile("../../charts/gatehouse/templates/_volumes.tpl")
	require.NoError(t, err)
	size := regexp.MustCompile(`emptyDir: {medium: Memory, sizeLimit: {{ add (\d+) \$file }}Mi}`).FindSubmatch(text)
	if size == nil {
		t.Fatal("the chart's volume gatehouse-run was not found")
	}
	if has, err := strconv.Atoi(string(size[1])); err != nil || has<<20 < longest+next {
		t.Errorf("the volume has %d MiB, %v; want room for %d bytes", has, err, longest+next)
	}
}

// TestFailedRewriteLeavesNothing: a directory is where the file was.
func TestFailedRewriteLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	s := Open(path, discard)
	defer s.closeFile()
	require.NoError(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
	if err := s.rewriteFile([]pair{{1, 10}}); err == nil {
		t.Error("got no error, want one")
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want no file", err)
	}
}

func TestNewestOfTooMany(t *testing.T) {
	var pairs []pair
	for i := range uint64(maxPairs + 10) {
		pairs = append(pairs, pair{maxPairs + 10 - i, i})
	}
	got := newestPairs(pairs)
	if len(got) != maxPairs || got[0] != (pair{1, maxPairs + 9}) || got[maxPairs-1] != (pair{maxPairs, 10}) {
		t.Errorf("got %d pairs, from %v to %v", len(got), got[0], got[len(got)-1])
	}
}
