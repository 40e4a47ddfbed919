package image_test

import (
	"fmt"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/internal/image"
	"github.com/gatehouse/gatehouse/sidecar/internal/image/imagetest"
)

// TestNewEpochHidesOldVersions watches a worker that has not read the new epoch's state yet
// beside one that has: what the second finds, the first must not find in an older version,
// nor anything when the second may already miss a deleted object.
func TestNewEpochHidesOldVersions(t *testing.T) {
	const objects = 200
	memory := imagetest.NewMemory()
	before := image.New(image.Config{Objects: 4000, Verdicts: 4})
	before.Reset(nil)
	key := func(i int) string { return fmt.Sprintf("/%d", i) }
	for i := range objects {
		before.PutObject(object(key(i), 1, 100))
	}
	push(t, before, memory)
	old, _ := memory.State()

	after := image.New(image.Config{Objects: 1000, Verdicts: 4})
	for i := range objects - 1 { // the last one was deleted
		after.PutObject(object(key(i), 2, 100))
	}
	after.Reset(&old)
	seen := false // the new epoch's worker has found an object
	memory.AfterOp = func() {
		for i := range objects {
			if _, err := memory.LockedObject(key(i)); err == nil {
				seen = true
				break
			}
		}
		for i := range objects {
			if found, err := memory.LockedObjectBy(&old, key(i)); seen && err == nil {
				t.Fatalf("a worker with the old state finds version %d of %s beside the new epoch's objects", found.Version, key(i))
			}
		}
	}
	push(t, after, memory)
	if !seen {
		t.Error("no object of the new epoch was found")
	}
}
