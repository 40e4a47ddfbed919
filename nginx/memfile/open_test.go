//go:build linux

package memfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestOpenWaits: another worker reserves a large file, or finds the free pages, for longer than a writer waits.
func TestOpenWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	other := openTest(t, path)
	require.NoError(t, setLock(other.file, unix.F_WRLCK, writerByte))
	begin, released := time.Now(), make(chan error)
	time.AfterFunc(lockWait+lockWait/2, func() { released <- setLock(other.file, unix.F_UNLCK, writerByte) })
	f, err := Open(path, testSize)
	require.NoError(t, errors.Join(err, <-released))
	defer f.Close()
	if took := time.Since(begin); took < lockWait {
		t.Errorf("it took %v: the lock wasn't there", took)
	}
}

// TestReopenFailsAtOnce: a worker of nginx with requests to answer doesn't wait while another process opens the file.
func TestReopenFailsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	f, other := openTest(t, path), openTest(t, path)
	require.NoError(t, setLock(other.file, unix.F_WRLCK, writerByte))
	late, begin := await.Late(t), time.Now()
	if again, err := f.Reopen(); err == nil {
		again.Close()
		t.Error("the lock wasn't there")
	}
	if took := time.Since(begin) - late(); took > lockWait {
		t.Errorf("it took %v, want about %v", took, reopenWait)
	}
}

// TestOpenUnusable opens a file of another layout or size: the file is replaced, and then used.
func TestOpenUnusable(t *testing.T) {
	good := func(t *testing.T, path string) []byte {
		f := openTest(t, path)
		set(t, f, wire.RegionObjects, 1, []byte("before"))
		return bytes.Clone(f.mem)
	}
	for name, content := range map[string]func(good []byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"a few bytes":     func([]byte) []byte { return []byte("hello") },
		"half":            func(good []byte) []byte { return good[:len(good)/2] },
		"a byte less":     func(good []byte) []byte { return good[:len(good)-1] },
		"a byte more":     func(good []byte) []byte { return append(good, 0) },
		"zeroes":          func(good []byte) []byte { return make([]byte, len(good)) },
		"ones":            func(good []byte) []byte { return bytes.Repeat([]byte{0xff}, len(good)) },
		"another version": func(good []byte) []byte { good[0]++; return good },
		"another size":    func(good []byte) []byte { good[8]++; return good },
		"a damaged table": func(good []byte) []byte { good[headSize+3]++; return good },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "memory")
			require.NoError(t, os.WriteFile(path, content(good(t, filepath.Join(t.TempDir(), "good"))), 0o600))
			f := openTest(t, path)
			if used, _ := f.Usage(); used != 0 {
				t.Errorf("%d bytes are used, want none", used)
			}
			set(t, f, wire.RegionObjects, 1, []byte("x"))
			if got := openTest(t, path).Record(wire.RegionObjects, 1); string(got) != "x" {
				t.Errorf("got %q, want x", got)
			}
			if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
				t.Errorf("the temporary file is still there: %v", err)
			}
		})
	}
}

// TestOpenRefuses opens what can't become a file.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)
	os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "link"))
	for _, c := range []struct {
		path string
		size int64
		want string
	}{
		{dir, testSize, "is a directory"},
		{filepath.Join(dir, "fifo"), testSize, "not a regular file"},
		{filepath.Join(dir, "link"), testSize, "symbolic links"},
		{filepath.Join(dir, "no", "memory"), testSize, "no such file"},
		{filepath.Join(dir, "memory"), MinSize - 1, "out of 65536 to"},
		{filepath.Join(dir, "memory"), MaxSize + 1, "out of 65536 to"},
	} {
		if f, err := Open(c.path, c.size); f != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %d bytes: got error %v, want %q", filepath.Base(c.path), c.size, err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

// TestPagesAreReserved: a write to a file with a hole would end the process when memory is full.
func TestPagesAreReserved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	openTest(t, path).Close()
	for range 2 {
		var info unix.Stat_t
		if err := unix.Stat(path, &info); err != nil || info.Blocks*512 < testSize {
			t.Errorf("%d bytes are reserved, want %d (%v)", info.Blocks*512, testSize, err)
		}
		head, err := os.ReadFile(path)
		require.NoError(t, err)
		os.WriteFile(path, head[:headSize], 0o600) // what a copy without its zeroes is
		os.Truncate(path, testSize)
		openTest(t, path).Close()
	}
}

// TestGeometry: everything lies within the file, and whole.
func TestGeometry(t *testing.T) {
	for _, size := range []int64{MinSize, MinSize + 1, MinSize + 4095, 3 << 20, 3<<20 + 12345} {
		f, err := Open(filepath.Join(t.TempDir(), "memory"), size)
		require.NoError(t, err)
		from := int64(cap(f.mem) - cap(f.pages))
		lost := size - int64(len(f.links)*pageSize)
		if from%pageSize != 0 || lost > headSize+size/50+pageSize*placesIn*2 {
			t.Errorf("%d bytes: pages begin at %d, %d bytes are not pages", size, from, lost)
		}
		f.links[len(f.links)-1] = 0xffffffff
		f.tables[len(f.tables)-1].Store(0xfffffffe)
		f.pageBytes(uint32(len(f.links) - 1))[pageSize-1] = 1
		if f.links[0] != 0 || f.pageBytes(0)[0] != 0 || f.links[len(f.links)-1] != 0xffffffff {
			t.Errorf("%d bytes: parts overlap", size)
		}
		f.Close()
	}
}

// TestRecordsMustBeConfirmed opens a file again: with a second user, as at a reload, the records still count; without
// one, as when nginx was down, the sidecar must confirm the records first.
func TestRecordsMustBeConfirmed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	confirmed := func(f *File, want bool, when string) {
		t.Helper()
		if got := f.IsConfirmed(); got != want {
			t.Errorf("%s: confirmed %v, want %v", when, got, want)
		}
	}
	a := openTest(t, path)
	confirmed(a, false, "new")
	set(t, a, wire.RegionObjects, 1, []byte("object"))
	confirmed(a, false, "without a state")
	a.SetState([]byte("state"), 0)
	confirmed(a, true, "with a state")
	b := openTest(t, path)
	confirmed(b, true, "reloaded")
	a.Close()
	confirmed(b, true, "the old worker has gone")
	b.Close()
	c, d := openTest(t, path), openTest(t, path)
	confirmed(c, false, "restarted")
	record, number := c.State()
	if string(record) != "state" || string(c.Record(wire.RegionObjects, 1)) != "object" {
		t.Errorf("got state %q, want what was there", record)
	}
	if d.SetState([]byte("overtaken"), number+1) {
		t.Error("a write with another number was accepted")
	}
	confirmed(c, false, "after a refused write")
	d.SetState([]byte("heartbeat"), number)
	confirmed(c, true, "heard")
}

// TestOpenOfOthers: a file that foreign users may write to, or with a second name, is replaced, and not emptied.
func TestOpenOfOthers(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"another name": func(path string) error { return os.Link(path, path+".other") },
		"its group":    func(path string) error { return os.Chmod(path, 0o620) },
		"everybody":    func(path string) error { return os.Chmod(path, 0o602) },
		"another user": func(path string) error { return os.Chown(path, 65534, -1) },
	} {
		if name == "another user" && os.Geteuid() != 0 {
			continue // only root may give a file away
		}
		for _, content := range []string{"precious", string(goodFile(t))} {
			path := filepath.Join(t.TempDir(), "memory")
			require.NoError(t, errors.Join(os.WriteFile(path, []byte(content), 0o600), change(path)))
			before, err := os.Open(path)
			require.NoError(t, err)
			defer before.Close()
			f := openTest(t, path)
			set(t, f, wire.RegionObjects, 1, []byte("record"))
			if got, err := io.ReadAll(before); err != nil || string(got) != content {
				t.Errorf("%s: %d bytes are left of %d: %v", name, len(got), len(content), err)
			}
			info, err := os.Stat(path)
			if err != nil || !ownFile(info) {
				t.Errorf("%s: got %v, %v", name, info, err)
			}
		}
	}
}

// TestAnotherSize reloads nginx with another size: old workers keep the old file, new workers have a new file.
func TestAnotherSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	old := openTest(t, path)
	set(t, old, wire.RegionObjects, 1, []byte("old"))
	f, err := Open(path, 2*testSize)
	require.NoError(t, err)
	defer f.Close()
	if got := f.Record(wire.RegionObjects, 1); got != nil {
		t.Errorf("got %q in a new file, want nil", got)
	}
	set(t, f, wire.RegionObjects, 1, []byte("new"))
	set(t, old, wire.RegionObjects, 2, []byte("old"))
	if got := old.Record(wire.RegionObjects, 1); string(got) != "old" {
		t.Errorf("got %q in the old file, want old", got)
	}
}

// TestOpenersAgree has many workers open a missing file, or garbage, at once: all get the same file.
func TestOpenersAgree(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		path := filepath.Join(t.TempDir(), "memory")
		if round%2 == 1 {
			os.WriteFile(path, []byte("garbage"), 0o600)
		}
		var group sync.WaitGroup
		files := make([]*File, 8)
		for i := range files {
			group.Go(func() {
				f, err := Open(path, testSize)
				if err != nil {
					t.Error(err)
					return
				}
				files[i] = f
				if err := f.SetRecord(wire.RegionObjects, uint32(i), fmt.Append(nil, i)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if t.Failed() {
			return
		}
		for _, f := range files {
			for i := range files {
				if got := f.Record(wire.RegionObjects, uint32(i)); string(got) != fmt.Sprint(i) {
					t.Fatalf("record %d: got %q", i, got)
				}
			}
		}
		checkFree(t, files[0])
		for _, f := range files {
			f.Close()
			f.mem = nil
		}
	}
}

// FuzzOpen writes any values to any places of a file with records, and uses it.
func FuzzOpen(f *testing.F) {
	var values []byte
	for _, at := range []uint32{16, 40, 48, 128, 136, 140, headSize, headSize + 700, 20_000} {
		values = binary.LittleEndian.AppendUint32(values, at)
		values = binary.LittleEndian.AppendUint64(values, 0x0000_0001_0000_0007)
		f.Add(values)
	}
	good, path := goodFile(f), filepath.Join(f.TempDir(), "fuzzed")
	f.Fuzz(func(t *testing.T, values []byte) { useDamaged(t, path, good, values) })
}

// TestOpenDamaged does what FuzzOpen does, with small values in the part before the pages.
func TestOpenDamaged(t *testing.T) {
	seeds := 1000
	if testing.Short() {
		seeds = 20
	}
	good, path := goodFile(t), filepath.Join(t.TempDir(), "damaged")
	for seed := range seeds {
		r := rand.New(rand.NewPCG(uint64(seed), 2))
		var values []byte
		for range 1 + r.IntN(30) {
			values = binary.LittleEndian.AppendUint32(values, 4*r.Uint32N(1<<(2+r.IntN(12))))
			values = binary.LittleEndian.AppendUint64(values, uint64(r.IntN(1<<r.IntN(40))))
		}
		useDamaged(t, path, good, values)
	}
}

// goodFile returns the content of a file with records.
func goodFile(t testing.TB) []byte {
	f := newTest(t)
	for i := range uint32(100) {
		set(t, f, testRegions[i%5], i, numbered(nil, uint64(i)))
	}
	return bytes.Clone(f.mem)
}

// useDamaged opens and uses a file in which values, of twelve bytes each, tell what to write where. Nothing may fail
// that has room, go out of bounds, or never end.
func useDamaged(t *testing.T, path string, good, values []byte) {
	content := bytes.Clone(good)
	for ; len(values) >= 12; values = values[12:] {
		copy(content[binary.LittleEndian.Uint32(values)%(testSize-8):], values[4:12])
	}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	f, err := Open(path, testSize)
	require.NoError(t, err)
	defer f.Close()
	for i := range uint32(1000) {
		f.Record(testRegions[i%5], i)
	}
	for i := range uint32(50) {
		record := numbered(nil, uint64(i))
		err := f.SetRecord(wire.RegionBodies, i, record)
		if err == nil && !bytes.Equal(f.Record(wire.RegionBodies, i), record) {
			t.Fatalf("record %d isn't what was written", i)
		}
	}
	checkFree(t, f)
}

// TestSizeInChart: the chart reserves SizeFor's result for each possible memory, and at most 3 MiB more.
func TestSizeInChart(t *testing.T) {
	text, err := os.ReadFile("../../charts/gatehouse/templates/_nginx.tpl")
	require.NoError(t, err)
	number := func(pattern string) int64 {
		t.Helper()
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("the chart has no %s", pattern)
		}
		n, err := strconv.ParseInt(string(found[1]), 10, 64)
		require.NoError(t, err)
		return n
	}
	smallest := number(`min \(mul 4 \$objects\) \(div \(int64 \$bytes\) (\d+)\)`)
	perBody, perObject := number(`mul (\d+) \$bodies`), number(`mul (\d+) \$objects\) \(mul`)
	perVerdict, passing := number(`mul (\d+) \$verdicts`), number(`mul (\d+) 1048576\) \}\}`)
	more, factor := number(`"file" \(add (\d+) \(div`), number(`mul \$size (\d+)\) 1073741824`)
	for _, budget := range []int64{1 << 20, 16 << 20, 256 << 20, 1 << 30, 64 << 30} {
		for _, objects := range []int64{1, 1000, 100_000, 10_000_000} {
			for _, verdicts := range []int64{1, 100_000, 10_000_000} {
				size := budget + perBody*min(4*objects, budget/smallest) + perObject*objects + perVerdict*verdicts + passing<<20
				file, want := more+size*factor>>30, SizeFor(budget, objects, verdicts)
				if file<<20 < want || file<<20 > want+3<<20+want/1000 {
					t.Errorf("memory of %d bytes, %d objects, %d verdicts: %d MiB in the chart, want %d bytes", budget, objects,
						verdicts, file, want)
				}
			}
		}
	}
}
