//go:build linux

package memfile

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// The test binary is also a process that reads or writes.
var (
	workerPath  = flag.String("worker-path", "", "be a worker with this memory file")
	workerSeed  = flag.Int("worker-seed", 0, "what it writes; 0: it reads")
	workerCount = flag.Int("worker-count", 0, "how often; 0: for ever")
)

const workerPlaces = 16

func TestMain(m *testing.M) {
	flag.Parse()
	if *workerPath == "" {
		os.Exit(m.Run())
	}
	time.AfterFunc(workerLife, func() { os.Exit(1) })
	if err := work(*workerPath, uint64(*workerSeed), *workerCount); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A worker ends by itself if its test was killed.
const workerLife = 10 * time.Minute

// work writes records, or reads records and fails at an incomplete one.
func work(path string, seed uint64, count int) error {
	f, err := Open(path, testSize)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var record []byte
	for i := 0; count == 0 || i < count; i++ {
		region, index := testRegions[r.IntN(len(testRegions))], uint32(r.IntN(workerPlaces))
		if seed == 0 {
			if record = f.Record(region, index); record == nil {
				continue
			}
			if n, ok := isNumbered(record); !ok {
				return fmt.Errorf("read %d: %s %d: got %d bytes that no writer wrote, beginning as record %d",
					i, region, index, len(record), n)
			}
			continue
		}
		record = numbered(record, r.Uint64())
		if err := f.SetRecord(region, index, record); err != nil {
			return err
		}
	}
	return nil
}

// process is a running worker.
type process struct {
	*os.Process
	ended chan error // receives why it ended
}

func worker(t *testing.T, path string, seed, count int) *process {
	c := exec.Command(os.Args[0], "-worker-path="+path, fmt.Sprintf("-worker-seed=%d", seed),
		fmt.Sprintf("-worker-count=%d", count))
	c.Stderr = os.Stderr
	require.NoError(t, c.Start())
	p := &process{c.Process, make(chan error, 1)}
	go func() { p.ended <- c.Wait(); close(p.ended) }()
	t.Cleanup(func() { p.Kill(); <-p.ended })
	return p
}

// TestKilledWriter stops a writer at each step of writes, and has other writers go on: each place has the old record
// or, at the written place, the new record, and no page is lost.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	f := openTest(t, path)
	type write struct {
		region wire.Region
		index  uint32
		length int
	}
	full := int(f.free.Load()-4) * pageSize
	writes := []write{
		{wire.RegionObjects, 1, 100}, {wire.RegionObjects, 2, 1000}, {wire.RegionObjects, 1, 1000},
		{wire.RegionObjects, 2, 10},
		{wire.RegionState, 0, 200}, {wire.RegionState, 0, 300}, {wire.RegionObjects, 2, 0}, {wire.RegionVerdicts, 99, 700},
		{wire.RegionBodies, 1, full / 2}, {wire.RegionBodies, 1, full / 2}, {wire.RegionBodies, 1, 40},
	}
	records := map[write][]byte{}
	at := func(w write) write { w.length = 0; return w }
	stops := 0
	other, restarted := newTest(t), filepath.Join(t.TempDir(), "restarted")
	for i, w := range writes {
		before := maps.Clone(records)
		records[at(w)] = bytes.Repeat([]byte{byte(i + 1)}, w.length)
		var left [][]byte
		var steps []string
		f.step = func(step string) {
			if n := len(steps); n > 1 && steps[n-1] == step && steps[n-2] == step {
				left = left[:n-1] // of pages that are filled, the first and the last one
				steps = steps[:n-1]
			}
			left, steps = append(left, bytes.Clone(f.mem)), append(steps, step)
		}
		set(t, f, w.region, w.index, records[at(w)])
		f.step = nil
		for j, mem := range left {
			check := func(f *File, how string) {
				t.Helper()
				for other, record := range records {
					got := f.Record(other.region, other.index)
					mayBe := [][]byte{record}
					if other == at(w) {
						mayBe = append(mayBe, before[other])
						if w.length > testSize/3 {
							mayBe = append(mayBe, nil) // there was no room for both
						}
					}
					ok := false
					for _, b := range mayBe {
						ok = ok || bytes.Equal(got, b)
					}
					if !ok {
						t.Errorf("write %d %v, stopped after %q, %s: %v: got %d bytes", i, w, steps[j], how, other, len(got))
					}
				}
				used := uint32(0)
				for k := range f.tables {
					if f.tables[k].Load() != 0 {
						used++
					}
				}
				for other := range records {
					used += pagesFor(len(f.Record(other.region, other.index)))
				}
				if free := f.free.Load(); free+used != uint32(len(f.links)-1) || f.writing.Load() != 0 {
					t.Errorf("write %d %v, stopped after %q, %s: %d pages are free, %d used of %d",
						i, w, steps[j], how, free, used, len(f.links)-1)
				}
				checkFree(t, f)
			}
			stops++
			require.NoError(t, os.WriteFile(restarted, mem, 0o600))
			r := openTest(t, restarted)
			check(r, "opened again")
			r.Close()
			copy(other.mem, mem)
			set(t, other, guardRegion, 0, []byte("the next writer"))
			if got := other.Record(guardRegion, 0); string(got) != "the next writer" {
				t.Errorf("got %q", got)
			}
			set(t, other, guardRegion, 0, nil)
			check(other, "used by another")
		}
	}
	if stops < 7*len(writes) {
		t.Errorf("stopped %d writes", stops)
	}
}

// TestKilledProcesses kills writers at any time, while others read and write.
func TestKilledProcesses(t *testing.T) {
	kills, readers := 300, 2
	if testing.Short() {
		kills, readers = 8, 1
	}
	path := filepath.Join(t.TempDir(), "memory")
	f := openTest(t, path)
	for range readers {
		worker(t, path, 0, 0)
	}
	var record []byte
	found := 0
	for i := range kills {
		c := worker(t, path, i+1, 0)
		writes := func() {
			_, before := f.State()
			for begin := time.Now(); time.Since(begin) < 20*time.Second; {
				if _, number := f.State(); number != before {
					return
				}
			}
			t.Fatal("the writer doesn't write")
		}
		writes()
		for range rand.IntN(1000) {
			record = numbered(record, rand.Uint64())
			set(t, f, testRegions[rand.IntN(5)], uint32(rand.IntN(workerPlaces)), record)
		}
		writes()
		for begin, wait := time.Now(), time.Duration(rand.IntN(100))*time.Microsecond; time.Since(begin) < wait; {
		}
		c.Kill()
		<-c.ended
		if f.writing.Load() != 0 {
			found++
		}
		set(t, f, guardRegion, 0, numbered(nil, 5))
		for _, region := range testRegions {
			for index := range uint32(workerPlaces) {
				if record := f.Record(region, index); record != nil {
					if _, ok := isNumbered(record); !ok {
						t.Fatalf("kill %d: %s %d isn't whole", i, region, index)
					}
				}
			}
		}
		checkFree(t, f)
	}
	t.Logf("%d of %d writers were killed while they wrote", found, kills)
}

// TestReadersAndAWriter reads in this process while another goroutine writes.
func TestReadersAndAWriter(t *testing.T) {
	writes, readers := 300_000, 2
	if testing.Short() {
		writes = 10_000
	}
	path := filepath.Join(t.TempDir(), "memory")
	w := openTest(t, path)
	done := make(chan struct{})
	var group sync.WaitGroup
	for range readers {
		f := openTest(t, path)
		group.Go(func() {
			for i := uint32(0); ; i++ {
				select {
				case <-done:
					return
				default:
				}
				region := testRegions[i%5]
				if record := f.Record(region, i%4); record != nil {
					if n, ok := isNumbered(record); !ok {
						t.Errorf("%s %d: got %d bytes that no writer wrote, beginning as record %d", region, i%4, len(record), n)
						return
					}
				}
			}
		})
	}
	var record []byte
	for i := range writes {
		record = numbered(record, rand.Uint64())
		set(t, w, testRegions[i%5], uint32(rand.IntN(4)), record)
	}
	close(done)
	group.Wait()
	checkFree(t, w)
}

// TestProcesses writes a million records in one process and reads in several.
func TestProcesses(t *testing.T) {
	writes, readers := 1_000_000, 3
	if testing.Short() {
		writes, readers = 20_000, 2
	}
	path := filepath.Join(t.TempDir(), "memory")
	f := openTest(t, path)
	var reading []*process
	for range readers {
		reading = append(reading, worker(t, path, 0, 0))
	}
	if err := <-worker(t, path, 1, writes).ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	for _, r := range reading {
		select {
		case err := <-r.ended:
			t.Errorf("reader: %v", err)
		default:
		}
	}
	checkFree(t, f)
}
