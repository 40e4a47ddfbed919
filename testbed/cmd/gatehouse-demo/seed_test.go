package main

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/publish"
)

func TestSeed(t *testing.T) {
	server := miniredis.RunT(t)
	url := "redis://" + server.Addr()
	begin := time.Now()
	if err := seed(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Logf("seeded in %s", time.Since(begin))

	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	publisher := publish.New(client)
	objects := 0
	for entry, err := range publisher.List(t.Context(), "/v1/") {
		if err != nil {
			t.Fatal(entry, err)
		}
		objects++
	}
	if want := products + 1; objects != want {
		t.Errorf("objects: got %d, want %d", objects, want)
	}
	var devices []string
	for device, err := range publisher.ListDevices(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, device.ID)
	}
	if len(devices) != 2 {
		t.Errorf("devices: got %q, want %s and %s", devices, demoDevice, readOnlyDevice)
	}
	object, err := publisher.Get(t.Context(), "/v1/products/42")
	if err != nil {
		t.Fatal(err)
	}
	if size := len(object.Bodies[0].Bytes); size < 900 || size > 1100 {
		t.Errorf("product: got %d bytes, want about 1 KiB", size)
	}
	if len(object.Bodies) < 3 {
		t.Errorf("encodings of a product: got %d, want identity and compressed ones", len(object.Bodies))
	}
}
