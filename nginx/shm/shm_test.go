package shm

import (
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Each record has one byte value throughout, and a length that follows from it.
func record(v byte) []byte {
	b := make([]byte, 40+int(v)*97)
	for i := range b {
		b[i] = v
	}
	return b
}

func whole(b []byte) bool {
	if len(b) < 40 || len(b) != 40+int(b[0])*97 {
		return false
	}
	for _, c := range b {
		if c != b[0] {
			return false
		}
	}
	return true
}

func TestTorn(t *testing.T) {
	path := filepath.Join("/dev/shm", "gatehouse-test")
	os.Remove(path)
	defer os.Remove(path)
	const size = 64 << 20
	w, err := Open(path, size)
	if err != nil {
		t.Fatal(err)
	}
	stop := time.Now().Add(4 * time.Second)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			r, err := Open(path, size)
			if err != nil {
				t.Error(err)
				return
			}
			n, none := 0, 0
			for ; time.Now().Before(stop); n++ {
				b := r.Record(2, uint32(n%8))
				if b == nil {
					none++
				} else if !whole(b) {
					t.Errorf("torn: %d bytes of %d", len(b), b[0])
					return
				}
			}
			t.Logf("%d reads, %d repeated, %d nil", n, r.Torn, none)
		})
	}
	n := 0
	for ; time.Now().Before(stop); n++ {
		if err := w.SetRecord(2, uint32(rand.Intn(8)), record(byte(rand.Intn(256)))); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	t.Logf("%d writes, %d bytes used", n, w.h.top)
}

// TestKilled kills a writing process again and again.
func TestKilled(t *testing.T) {
	path := "/dev/shm/gatehouse-test2"
	const size = 64 << 20
	if os.Getenv("SHM_WRITER") != "" {
		w, err := Open(path, size)
		if err != nil {
			t.Fatal(err)
		}
		for {
			if err := w.SetRecord(2, uint32(rand.Intn(8)), record(byte(rand.Intn(256)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	os.Remove(path)
	defer os.Remove(path)
	r, err := Open(path, size)
	if err != nil {
		t.Fatal(err)
	}
	dirty := 0
	for range 40 {
		c := exec.Command(os.Args[0], "-test.run=TestKilled")
		c.Env = append(os.Environ(), "SHM_WRITER=1")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		stop := time.Now().Add(time.Duration(30+rand.Intn(60)) * time.Millisecond)
		for time.Now().Before(stop) {
			if b := r.Record(2, uint32(rand.Intn(8))); b != nil && !whole(b) {
				t.Fatal("torn")
			}
		}
		c.Process.Signal(syscall.SIGKILL)
		c.Wait()
		if r.h.dirty != 0 {
			dirty++
		}
		if err := r.SetRecord(2, 3, record(7)); err != nil {
			t.Fatal(err)
		}
		for i := range uint32(8) {
			if b := r.Record(2, i); b != nil && !whole(b) {
				t.Fatal("torn after kill")
			}
		}
	}
	t.Logf("killed 40 times, %d of them while it wrote", dirty)
}
