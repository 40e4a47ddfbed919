package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// The demo's devices, and the number of products.
const (
	demoDevice     = "demo-device"
	demoSecret     = "demo-secret"
	readOnlyDevice = "read-only"
	readOnlySecret = "read-only-secret"

	products = 1000
	// bcryptCost is a cost for production: the first request of a device is visibly slower than later requests.
	bcryptCost = 12
)

// product is a demo object of about 1 KiB as JSON.
type product struct {
	ID          int    `json:"id"`
	Name        string `json:"name"`
	Price       string `json:"price"`
	Description string `json:"description"`
}

// fleetConfig is the demo object behind /v1/fleet/config.
type fleetConfig struct {
	ReportEverySeconds int      `json:"report_every_seconds"`
	Firmware           string   `json:"firmware"`
	Endpoints          []string `json:"endpoints"`
}

// seedRedis publishes the demo data: the same at every start, with greater versions.
func seedRedis(ctx context.Context, redisURL string) error {
	client, err := redisurl.Connect(redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	publisher := publish.New(client)

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0)) // half compress while half wait for Redis
	for id := 1; id <= products; id++ {
		group.Go(func() error { return putJSON(ctx, publisher, fmt.Sprintf("/v1/products/%d", id), newProduct(id)) })
	}
	group.Go(func() error {
		return putJSON(ctx, publisher, "/v1/fleet/config", fleetConfig{
			ReportEverySeconds: 60, Firmware: "2.4.1", Endpoints: []string{"/v1/telemetry", "/v1/me/config"},
		})
	})
	for _, device := range []publish.Device{
		{ID: demoDevice, Secret: demoSecret, Permissions: []string{"telemetry.write", "config.read"}, Cost: bcryptCost},
		{ID: readOnlyDevice, Secret: readOnlySecret, Permissions: []string{"config.read"}, Cost: bcryptCost},
	} {
		group.Go(func() error {
			_, err := publisher.PutDevice(ctx, device)
			return err
		})
	}
	return group.Wait()
}

func putJSON(ctx context.Context, publisher *publish.Publisher, key string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	_, err = publisher.Put(ctx, publish.Object{Key: key, Body: append(body, '\n'), ContentType: "application/json"})
	return err
}

// newProduct returns product id, the same at every call.
func newProduct(id int) product {
	name := fmt.Sprintf("%s %d", []string{"Thermostat", "Gateway", "Sensor", "Relay"}[id%4], id)
	return product{
		ID: id, Name: name, Price: fmt.Sprintf("%d.%02d", 5+id*37%400, id*13%100),
		Description: strings.Repeat(name+
			" reports its readings every minute, and keeps a week of them while the network is away. ", 9),
	}
}
