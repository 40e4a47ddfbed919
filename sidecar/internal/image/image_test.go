package image_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/image"
	"github.com/gatehouse/gatehouse/sidecar/internal/image/imagetest"
	"github.com/gatehouse/gatehouse/wire"
)

// object is version of key; its bodies say what they are.
func object(key string, version uint64, size int) contract.Object {
	o := contract.Object{
		Key: key, Version: version, PublishedMS: int64(version) * 10, TTLMS: int64(version % 3),
		ETag: fmt.Sprintf(`"%d"`, version), ContentType: "text/plain",
	}
	for e := range wire.Encoding(1 + version%3) {
		o.Bodies = append(o.Bodies, contract.Body{Encoding: e, Bytes: body(key, version, e, size)})
	}
	return o
}

func body(key string, version uint64, e wire.Encoding, size int) []byte {
	line := fmt.Appendf(nil, "%s version %d %s\n", key, version, e)
	return bytes.Repeat(line, size/len(line)+1)
}

// check says what is wrong with what the edge finds.
func check(f imagetest.Found, key string, size int) error {
	want := object(key, f.Version, size)
	if f.Key != key || f.ETag != want.ETag || f.ContentType != want.ContentType ||
		f.PublishedMS != want.PublishedMS || f.TTLMS != uint64(want.TTLMS) || len(f.Bodies) != len(want.Bodies) {
		return fmt.Errorf("%q: found %+v, want %+v", key, f.Object, want)
	}
	for i, b := range f.Bodies {
		if !bytes.Equal(b, want.Bodies[i].Bytes) {
			return fmt.Errorf("%q version %d: wrong bytes: %.60q", key, f.Version, b)
		}
	}
	return nil
}

// push takes all there is to the memory.
func push(t *testing.T, m *image.Image, memory *imagetest.Memory) {
	t.Helper()
	for {
		batch, taken := m.Take(nil)
		if status, answer := memory.Apply(batch); status != http.StatusOK {
			t.Fatalf("apply: %d %s", status, answer)
		}
		m.Acked()
		if !taken.More {
			return
		}
	}
}

// TestModel does random things to an image and a memory. Between any two operations each
// object of the epoch is found whole, in a version that exists and not older than before;
// at rest the memory is exactly the image.
func TestModel(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { model(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func model(t *testing.T, r *rand.Rand) {
	const keys = 24
	size := []int{10, 1500, 20000}[r.IntN(3)]
	key := func(i int) string { return fmt.Sprintf("/k/%d", i) }
	checked := map[*byte]bool{} // first bytes of records: the memory never changes one in place
	m, memory := image.New(image.Config{Objects: 1 + r.IntN(keys), Verdicts: 1 + r.IntN(64)}), imagetest.NewMemory()
	m.Reset(nil)
	var last [keys]uint64    // versions, given out
	var seen [keys]uint64    // versions, by the reader
	want := map[int]uint64{} // as the image should have
	var gone [keys]uint64    // newest version that was deleted, when the edge was told
	epoch := uint64(0)
	memory.AfterOp = func() {
		state, _ := memory.LockedState()
		for i := range keys {
			f, err := memory.LockedObject(key(i))
			if errors.Is(err, wire.ErrNotFound) && !errors.Is(err, imagetest.ErrTorn) {
				continue
			}
			if err == nil && !checked[&f.Bodies[0][0]] {
				checked[&f.Bodies[0][0]] = true
				err = check(f, key(i), size)
			}
			if err == nil && (f.Version < seen[i] || f.Version <= gone[i]) {
				err = fmt.Errorf("%q: version %d after %d, deleted up to %d", key(i), f.Version, seen[i], gone[i])
			}
			if err != nil {
				t.Fatal(err)
			}
			seen[i] = f.Version
		}
		epoch = state.Epoch
	}
	deliver := func() {
		batch, taken := m.Take(nil)
		if len(batch) > 320<<10 || taken.Ops > 514 {
			t.Fatalf("batch of %d bytes, %d operations", len(batch), taken.Ops)
		}
		lost := r.IntN(12)
		status, answer := http.StatusServiceUnavailable, []byte(nil)
		if lost != 0 {
			status, answer = memory.Apply(batch)
		}
		if status != http.StatusOK && status != http.StatusConflict && lost != 0 {
			t.Fatalf("apply: %d %s", status, answer)
		}
		if status == http.StatusOK && lost != 1 {
			m.Acked()
			if taken.Drained {
				for i := range keys {
					if _, found := want[i]; !found {
						gone[i] = last[i]
					}
				}
			}
			return
		}
		reset(m, memory)
	}
	for range 400 {
		i := r.IntN(keys)
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			last[i]++
			want[i] = last[i]
			m.PutObject(object(key(i), last[i], size))
		case 4:
			delete(want, i)
			m.DeleteObject(key(i))
		case 5:
			outcome := wire.Outcome(1 + r.IntN(2))
			m.PutVerdict(key(i), "secret", wire.Verdict{Outcome: outcome, ExpiresMS: time.Now().Add(time.Second).UnixMilli()})
		case 6:
			m.DropVerdicts(key(i))
		case 7:
			time.Sleep(time.Duration(r.IntN(800)) * time.Millisecond)
		case 8:
			if r.IntN(10) == 0 {
				memory.Forget()
			}
		default:
			deliver()
		}
	}
	quiesce(t, m, memory)
	if epoch != m.Epoch() {
		t.Errorf("the memory is of epoch %x, want %x", epoch, m.Epoch())
	}
	live := 0
	for i := range keys {
		f, err := memory.Object(key(i))
		version, found := want[i]
		if found != (err == nil) || f.Version != version {
			t.Errorf("%q: found version %d, %v; want %d", key(i), f.Version, err, version)
		}
		for _, b := range f.Bodies {
			live += len(b)
		}
	}
	// Entries, the state, and padding are all that may come on top.
	if records, excess := memory.Size(); excess > live+keys*300+500 {
		t.Errorf("%d bytes in %d records for %d live ones: free slots or old buckets were not blanked", excess, records, live)
	}
}

// reset does what the pusher does after a failure.
func reset(m *image.Image, memory *imagetest.Memory) {
	if state, found := memory.State(); found {
		m.Reset(&state)
		return
	}
	m.Reset(nil)
}

// quiesce pushes until nothing is left, blanks included, with no failures.
func quiesce(t *testing.T, m *image.Image, memory *imagetest.Memory) {
	t.Helper()
	batch, _ := m.Take(nil)
	if status, _ := memory.Apply(batch); status != http.StatusOK {
		reset(m, memory)
	} else {
		m.Acked()
	}
	push(t, m, memory)
	time.Sleep(2 * time.Second)
	push(t, m, memory)
}

func TestResetBlanksWhatAnotherEpochLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := imagetest.NewMemory()
		before := image.New(image.Config{Objects: 400, Verdicts: 400})
		before.Reset(nil)
		for i := range 300 {
			before.PutObject(object(fmt.Sprintf("/old/%d", i), 1, 2000))
			before.PutVerdict(fmt.Sprint(i), "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()})
		}
		push(t, before, memory)
		state, _ := memory.State()

		after := image.New(image.Config{Objects: 4, Verdicts: 4})
		after.PutObject(object("/new", 1, 10))
		after.Reset(&state)
		push(t, after, memory)
		time.Sleep(2 * time.Second)
		push(t, after, memory)
		if _, excess := memory.Size(); excess > 1000 {
			t.Errorf("%d bytes are left in the memory", excess)
		}
		if f, err := memory.Object("/new"); err != nil || f.Version != 1 {
			t.Errorf("Object = %v, %v", f, err)
		}
		if got, _ := memory.State(); got.BodySlots != state.BodySlots {
			t.Errorf("BodySlots = %d, want %d as before", got.BodySlots, state.BodySlots)
		}
	})
}

func TestInStepIsNeverAheadOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, memory := image.New(image.Config{Objects: 4000}), imagetest.NewMemory()
		m.Reset(nil)
		start := time.Now()
		inStep := func() time.Duration {
			state, _ := memory.State()
			return time.UnixMilli(state.InStepMS).Sub(start)
		}
		deliver := func() {
			batch, _ := m.Take(nil)
			memory.Apply(batch)
			m.Acked()
		}
		for i := range 3000 {
			m.PutObject(object(fmt.Sprint("/", i), 1, 10))
		}
		m.SetInStep(start.Add(time.Second))
		deliver()
		if got := inStep(); got >= 0 {
			t.Errorf("in step at %v after one batch of many, want not yet", got)
		}
		// New changes keep coming: still what waited at SetInStep is through at some time.
		batches := 0
		for version := uint64(2); inStep() < time.Second; version++ {
			for i := range 400 {
				m.PutObject(object(fmt.Sprint("/more/", i), version, 10))
			}
			m.SetInStep(start.Add(time.Duration(version) * time.Second))
			deliver()
			if batches++; batches > 100 {
				t.Fatalf("in step at %v after %d batches", inStep(), batches)
			}
		}
		if m.Stats().DirtyBuckets == 0 {
			t.Error("nothing waits: the test shows nothing")
		}
		push(t, m, memory)
		m.SetInStep(start.Add(time.Hour))
		deliver()
		if got := inStep(); got != time.Hour {
			t.Errorf("in step at %v after all was taken, want 1h", got)
		}
		// A new epoch begins with what held for all that it will write.
		state, _ := memory.State()
		m.Reset(&state)
		m.SetInStep(start.Add(2 * time.Hour))
		deliver()
		if got := inStep(); got != time.Hour {
			t.Errorf("in step at %v after a reset, want 1h", got)
		}
	})
}

func TestPermissions(t *testing.T) {
	m, memory := image.New(image.Config{}), imagetest.NewMemory()
	m.Reset(nil)
	var names []string
	for i := range wire.MaxPermissions - 1 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	if set, err := m.Permissions(names); err != nil || set != 1<<63-1 {
		t.Fatalf("Permissions = %x, %v", set, err)
	}
	_, err := m.Permissions([]string{"one", "two"})
	if p, ok := errors.AsType[*image.PermissionsError](err); !ok || p.Name != "two" {
		t.Errorf("Permissions with two too many = %v, want an error that names two", err)
	}
	if set, err := m.Permissions([]string{"last", "p0"}); err != nil || set != 1<<63|1 {
		t.Errorf("Permissions = %x, %v after a refusal, want the bit that is left", set, err)
	}
	push(t, m, memory)
	state, _ := memory.State()
	if len(state.Permissions) != 64 || state.Permissions[63] != "last" || state.Permissions[7] != "p7" {
		t.Errorf("state has %q", state.Permissions)
	}
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, Permissions: 1 << 63, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()})
	push(t, m, memory)
	if v, err := memory.Verdict("d", "s"); err != nil || v.Permissions != 1<<63 || v.Outcome != wire.Allow {
		t.Errorf("Verdict = %+v, %v", v, err)
	}
}

func TestNewPermissionIsToldBeforeVerdicts(t *testing.T) {
	m, memory := image.New(image.Config{}), imagetest.NewMemory()
	m.Reset(nil)
	push(t, m, memory)
	set, _ := m.Permissions([]string{"new"})
	memory.AfterOp = func() {
		if state, _ := memory.LockedState(); len(state.Permissions) != 1 {
			t.Error("an operation came before the state with the new name")
		}
	}
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, Permissions: set, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()})
	push(t, m, memory)
}

func TestBodyOverTheBoundGoesAlone(t *testing.T) {
	m := image.New(image.Config{})
	m.Reset(nil)
	big := object("/big", 1, 10)
	for i := range big.Bodies {
		big.Bodies[i].Bytes = bytes.Repeat([]byte{'x'}, wire.MaxBody)
	}
	m.PutObject(big)
	memory := imagetest.NewMemory()
	for {
		batch, taken := m.Take(nil)
		if len(batch) > wire.MaxBody+1000 {
			t.Fatalf("batch of %d bytes", len(batch))
		}
		memory.Apply(batch)
		m.Acked()
		if taken.Drained {
			break
		}
	}
	if f, err := memory.Object("/big"); err != nil || len(f.Bodies) != len(big.Bodies) {
		t.Errorf("Object: %d bodies, %v", len(f.Bodies), err)
	}
}

func TestVerdictBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := image.New(image.Config{Verdicts: 8}) // two buckets
		m.Reset(nil)
		put := func(device string, outcome wire.Outcome, life time.Duration) {
			m.PutVerdict(device, "s", wire.Verdict{Outcome: outcome, ExpiresMS: time.Now().Add(life).UnixMilli()})
		}
		for i := range 8 {
			put(fmt.Sprint("good", i), wire.Allow, time.Minute)
		}
		for i := range 1000 {
			put(fmt.Sprint("bad", i), wire.Deny, time.Second)
		}
		if s := m.Stats(); s.Allows != 8 || s.Denies != 8 {
			t.Errorf("%d allows and %d denies after a flood, want 8 and 8", s.Allows, s.Denies)
		}
		memory := imagetest.NewMemory()
		push(t, m, memory)
		for i := range 8 {
			if v, err := memory.Verdict(fmt.Sprint("good", i), "s"); err != nil || v.Outcome != wire.Allow {
				t.Errorf("good%d: %v, %v", i, v.Outcome, err)
			}
		}
		put("one more", wire.Allow, time.Minute)
		if s := m.Stats(); s.Allows != 8 {
			t.Errorf("%d allows, want 8", s.Allows)
		}
		time.Sleep(2 * time.Second)
		m.Sweep()
		m.Sweep()
		if s := m.Stats(); s.Allows != 8 || s.Denies != 0 {
			t.Errorf("%d allows and %d denies after the denies expired, want 8 and 0", s.Allows, s.Denies)
		}
		for i := range 8 {
			m.DropVerdicts(fmt.Sprint("good", i))
		}
		m.DropVerdicts("one more")
		push(t, m, memory)
		if s := m.Stats(); s.Allows != 0 {
			t.Errorf("%d allows after all were dropped", s.Allows)
		}
		if _, err := memory.Verdict("one more", "s"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("dropped verdict: %v, want not found", err)
		}
	})
}

func TestLastVerdictOfACredentialCounts(t *testing.T) {
	m, memory := image.New(image.Config{}), imagetest.NewMemory()
	m.Reset(nil)
	expires := time.Now().Add(time.Hour).UnixMilli()
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Deny, ExpiresMS: expires})
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: expires})
	push(t, m, memory)
	if v, err := memory.Verdict("d", "s"); err != nil || v.Outcome != wire.Allow {
		t.Errorf("Verdict = %v, %v; want allow", v.Outcome, err)
	}
	if s := m.Stats(); s.Allows != 1 || s.Denies != 0 {
		t.Errorf("%d allows, %d denies; want 1, 0", s.Allows, s.Denies)
	}
	m.PutVerdict("d", "t", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(-time.Hour).UnixMilli()})
	if s := m.Stats(); s.Allows != 1 {
		t.Errorf("an expired verdict was stored")
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, memory := image.New(image.Config{}), imagetest.NewMemory()
		m.Reset(nil)
		set, _ := m.Permissions([]string{"a"})
		done := make(chan uint64)
		go func() {
			epoch, err := m.Await(t.Context(), set)
			if err != nil {
				t.Error(err)
			}
			done <- epoch
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Await returned before anything was acknowledged")
		default:
		}
		push(t, m, memory)
		if got := <-done; got != m.Epoch() {
			t.Errorf("Await = %x, want %x", got, m.Epoch())
		}
	})
}

func TestStampsAreUnique(t *testing.T) {
	m := image.New(image.Config{})
	m.Reset(nil)
	stamps := map[uint64]bool{}
	for version := range uint64(50) {
		m.PutObject(object("/a", version+1, 10))
		m.PutObject(object("/b", version+1, 10))
		batch, _ := m.Take(nil)
		parsed, err := wire.ParseBatch(batch)
		if err != nil {
			t.Fatal(err)
		}
		m.Acked()
		for op := range parsed.Ops() {
			if op.Region != wire.RegionBodies {
				continue
			}
			stamp := binary.LittleEndian.Uint64(op.Record[16:])
			if stamp != 0 && stamps[stamp] {
				t.Fatalf("stamp %d twice", stamp)
			}
			stamps[stamp] = true
		}
	}
}

func BenchmarkPutTake(b *testing.B) {
	m := image.New(image.Config{Objects: 100000})
	m.Reset(nil)
	objects := make([]contract.Object, 1000)
	for i := range objects {
		objects[i] = object(fmt.Sprint("/v1/products/", i), 1, 1000)
	}
	var buf []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.PutObject(objects[i%len(objects)])
		if i%100 == 99 {
			buf, _ = m.Take(buf)
			m.Acked()
		}
	}
}
