package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

// The demo's devices, and how many products there are.
const (
	demoDevice     = "demo-device"
	demoSecret     = "demo-secret"
	readOnlyDevice = "read-only"
	readOnlySecret = "read-only-secret"

	products = 1000
	// bcryptCost is what a careful operator uses: it makes the first request of a device
	// visibly slower than the next.
	bcryptCost = 12
)

// product is a demo object of about 1 KiB as JSON.
type product struct {
	ID          int      `json:"id"`
	Name        string   `json:"name"`
	SKU         string   `json:"sku"`
	Price       string   `json:"price"`
	Currency    string   `json:"currency"`
	InStock     int      `json:"in_stock"`
	Tags        []string `json:"tags"`
	Description string   `json:"description"`
}

// fleetConfig is the demo object behind /v1/fleet/config.
type fleetConfig struct {
	ReportEverySeconds int      `json:"report_every_seconds"`
	Firmware           string   `json:"firmware"`
	Endpoints          []string `json:"endpoints"`
}

// seed publishes the demo data. It is the same at every start; only versions grow.
func seed(ctx context.Context, redisURL string) error {
	client, err := redisurl.Connect(redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	publisher := publish.New(client)

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0)) // half of them compress while the others wait for Redis
	for id := 1; id <= products; id++ {
		group.Go(func() error { return put(ctx, publisher, fmt.Sprintf("/v1/products/%d", id), newProduct(id)) })
	}
	group.Go(func() error {
		return put(ctx, publisher, "/v1/fleet/config", fleetConfig{
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

func put(ctx context.Context, publisher *publish.Publisher, key string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	_, err = publisher.Put(ctx, publish.Object{Key: key, Body: append(body, '\n'), ContentType: "application/json"})
	return err
}

var (
	adjectives = []string{"Sturdy", "Quiet", "Bright", "Compact", "Weatherproof", "Modular", "Precise", "Rugged"}
	nouns      = []string{"thermostat", "gateway", "sensor", "relay", "meter", "camera", "valve", "beacon"}
	sentences  = []string{
		"Reports its readings every minute and keeps a week of them while the network is away.",
		"Runs for three years on two AA cells at room temperature.",
		"Housing of recycled aluminium, rated for rain, dust and a fall from two metres.",
		"Pairs with every gateway of the fleet without any further configuration.",
		"Updates itself at night and goes back to the old firmware when the new one fails.",
		"Calibrated at the factory; the certificate is printed on the inside of the lid.",
		"Mounts on a wall, a mast or a standard rail with the parts in the box.",
	}
)

// newProduct makes product id, always the same one.
func newProduct(id int) product {
	adjective, noun := adjectives[id%len(adjectives)], nouns[id/len(adjectives)%len(nouns)]
	description := ""
	for i := range 14 {
		description += sentences[(id*3+i*(1+id%5))%len(sentences)] + " "
	}
	return product{
		ID: id, Name: fmt.Sprintf("%s %s %d", adjective, noun, id), SKU: fmt.Sprintf("GH-%05d", id*7),
		Price: fmt.Sprintf("%d.%02d", 5+id*37%400, id*13%100), Currency: "EUR", InStock: id * 11 % 250,
		Tags: []string{noun, "fleet", "demo"}, Description: description[:min(len(description), 920)],
	}
}
