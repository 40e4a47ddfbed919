// Command gatehouse-postgres publishes the rows of a Postgres table to Gatehouse by logical replication: each committed
// row once and in order, also across restarts. See README.md.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

func main() {
	f := &follower{}
	flag.StringVar(&f.database, "database", "postgres://127.0.0.1/postgres", "URL of the database")
	flag.StringVar(&f.table, "table", "products", "table, which has REPLICA IDENTITY FULL")
	flag.StringVar(&f.column, "key", "id", "column whose value ends the key")
	flag.StringVar(&f.prefix, "prefix", "/v1/products/", "what begins the keys; nobody else may publish below it")
	flag.StringVar(&f.name, "name", "gatehouse", "name of the publication and of the replication slot")
	redis := flag.String("redis", "redis://127.0.0.1:6379", "URL of Redis")
	flag.Parse()

	client, err := redisurl.Settings{URL: *redis, Once: true}.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	f.publisher = publish.New(client)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		log.Print(err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
