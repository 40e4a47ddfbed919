package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

type watchCmd struct {
	jsonFlag `embed:""`
}

// watchedEvent is the printed form of an event, without bodies and hashes.
type watchedEvent struct {
	Time    time.Time `json:"time"` // of arrival
	Seq     uint64    `json:"seq"`
	Kind    string    `json:"kind"` // object or device
	ID      string    `json:"id"`
	Version string    `json:"version"`
	Change  string    `json:"change"` // written, deleted, revoked
	Bytes   int       `json:"bytes"`  // of the event
	Error   string    `json:"error,omitempty"`
}

// Run prints the events of all shards as they arrive, until interrupted.
func (cmd *watchCmd) Run(c *console) error {
	return c.withClient(func(ctx context.Context, client redis.UniversalClient) error {
		group, ctx := errgroup.WithContext(ctx)
		events := make(chan watchedEvent)
		keyspace := c.redis.keyspace(client)
		for i := range keyspace.Count() {
			group.Go(func() error { return sendEvents(ctx, client, keyspace.Keys(i).EventsChannel(), events) })
		}
		group.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case e := <-events:
					if err := cmd.printEvent(c, &e); err != nil {
						return err
					}
				}
			}
		})
		return group.Wait()
	})
}

// sendEvents sends the events of a channel until the connection ends.
func sendEvents(ctx context.Context, client redis.UniversalClient, channel string, events chan<- watchedEvent) error {
	sub := redisurl.Subscribe(ctx, client, channel)
	defer sub.Close()
	for {
		message, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		select {
		case events <- newWatchedEvent(message.Payload):
		case <-ctx.Done():
			return nil
		}
	}
}

func newWatchedEvent(payload string) watchedEvent {
	w := watchedEvent{Time: time.Now().UTC(), Bytes: len(payload)}
	e, err := contract.ParseEvent(payload)
	if err != nil {
		w.Error = err.Error()
		return w
	}
	w.Seq, w.ID, w.Version, w.Change = e.Seq, e.Member.ID, e.Fields[contract.FieldVersion], "written"
	w.Kind = map[byte]string{contract.KindObject: "object", contract.KindCredential: "device",
		contract.KindPurge: "purge"}[e.Member.Kind]
	switch {
	case e.Fields[contract.FieldDeleted] != "":
		w.Change = "deleted"
	case e.Fields[contract.FieldDisabled] == contract.DisabledRevoked:
		w.Change = "revoked"
	case e.Fields[contract.FieldDisabled] == "1":
		w.Change = "disabled"
	}
	return w
}

func (cmd *watchCmd) printEvent(c *console, w *watchedEvent) error {
	if cmd.JSON {
		return json.NewEncoder(c.stdout).Encode(w)
	}
	text := fmt.Sprintf("%s %s %s version %s, %d bytes", w.Kind, printable(w.ID), w.Change, printable(w.Version), w.Bytes)
	if w.Error != "" {
		text = "malformed event: " + w.Error
	}
	_, err := fmt.Fprintf(c.stdout, "%s  %d  %s\n", w.Time.Format("15:04:05.000"), w.Seq, text)
	return err
}
