package publish_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

func Example() {
	server, err := miniredis.Run() // in place of yours
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := write(context.Background(), server.Addr()); err != nil {
		log.Fatal(err)
	}
	// Output: version 1
}

func write(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	p := publish.New(client)
	receipt, err := p.Put(ctx, publish.Object{
		Key: "/v1/products/42", ContentType: "application/json", Body: []byte(`{"price": 7}`), TTL: time.Hour,
	})
	if err != nil {
		return err // nothing was written or, if Redis did not answer, perhaps: put it again
	}
	fmt.Println("version", receipt.Version)
	_, err = p.Delete(ctx, "/v1/products/41", 0)
	return err
}
