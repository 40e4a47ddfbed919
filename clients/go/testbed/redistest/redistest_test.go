package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestStart(t *testing.T) {
	var client *redis.Client
	started := t.Run("server", func(t *testing.T) {
		options, err := redis.ParseURL(Start(t))
		if err != nil {
			t.Fatal(err)
		}
		options.MaxRetries = -1
		client = redis.NewClient(options)
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("ping: %v", err)
		}
	})
	if !started {
		return
	}
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("the server is still there after its test")
	}
}
