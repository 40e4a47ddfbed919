package updates

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

func TestRateAndObjects(t *testing.T) {
	server := miniredis.RunT(t)
	url := "redis://" + server.Addr()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := (Command{Redis: url, Rate: 100, Objects: 7, Bytes: 1024}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	client, err := redisurl.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	versions := uint64(0)
	for i := range 7 {
		o, err := publish.New(client).Get(t.Context(), workload.ObjectPath(i))
		if err != nil || len(o.Bodies) != 1 || len(o.Bodies[0].Bytes) != 1024 {
			t.Fatalf("object %d: %+v, %v; want 1 KiB in one encoding", i, o, err)
		}
		versions += o.Version
	}
	if versions < 100 || versions > 201 {
		t.Errorf("got %d updates in 2 s, want 100 a second and never more", versions)
	}
	if n := len(server.Keys()); n > 7+5 {
		t.Errorf("got %d keys, want 7 objects, and five of the contract", n)
	}
}

func TestFailureEndsIt(t *testing.T) {
	server := miniredis.RunT(t)
	server.SetError("READONLY You can't write against a read only replica.")
	err := (Command{Redis: "redis://" + server.Addr(), Rate: 100, Objects: 1}).Run(t.Context())
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Redis's error", err)
	}
}
