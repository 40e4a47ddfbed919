package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// ErrReused: a write with the same [Request.ID] and a different digest was applied before. Nothing was written.
var ErrReused = errors.New("the request's id was used for another request")

// Request identifies a write, for programs with clients that repeat requests. As long as the shard remembers the
// request (docs/redis-contract.md), a repetition is not applied again, and returns the first receipt.
type Request struct {
	// ID identifies the request among all requests of the shard: use parts of a hash. Digest is a digest of the content.
	ID, Digest [16]byte
}

// RequestOf returns the Request with hashes of an id and the content.
func RequestOf(id, content string) (r Request) {
	ids, digest := sha256.Sum256([]byte(id)), sha256.Sum256([]byte(content))
	copy(r.ID[:], ids[:])
	copy(r.Digest[:], digest[:])
	return r
}

// String returns the request in the write script's form.
func (r Request) String() string {
	return hex.EncodeToString(r.ID[:]) + hex.EncodeToString(r.Digest[:])
}

type requestsKey struct{}

// WithRequests returns a context for one call of Put, PutAll, Delete, DeleteAll, DeleteIf, Purge or Repeated: the write
// of the object or key number i is requests[i].
func WithRequests(ctx context.Context, requests ...Request) context.Context {
	return context.WithValue(ctx, requestsKey{}, requests)
}

// requestOf returns the request of the write number i, "" if ctx has none.
func requestOf(ctx context.Context, i int) string {
	if requests, _ := ctx.Value(requestsKey{}).([]Request); i < len(requests) {
		return requests[i].String()
	}
	return ""
}

// Repeated returns the receipt of the request of ctx if the request was applied to the object at key. [ErrNotFound]:
// not applied, or ctx has no request. [ErrReused]: applied with a different digest.
func (p *Publisher) Repeated(ctx context.Context, key string) (Receipt, error) {
	return p.reader.readReceipt(ctx, key, requestOf(ctx, 0))
}

// readReceipt reads the script's memory of requests. write.lua describes its form.
func (r reader) readReceipt(ctx context.Context, key, request string) (Receipt, error) {
	if request == "" {
		return Receipt{}, ErrNotFound
	}
	const idSize, digestSize, number = 20, 8, 16
	keys := r.keyspace.KeysOf(key)
	var field, counter *redis.StringCmd
	_, err := r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		field = pipe.HGet(ctx, keys.ChainKey(), contract.RequestField(request))
		counter = pipe.Get(ctx, keys.SeqKey())
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return Receipt{}, fmt.Errorf("look for the request: %w", err)
	}
	stored := field.Val()
	at := strings.Index(stored, request[:idSize])
	if at < 0 || len(stored) < at+idSize+digestSize+2*number {
		return Receipt{}, ErrNotFound
	}
	entry := stored[at+idSize:]
	var receipt Receipt
	for i, n := range []*uint64{&receipt.Version, &receipt.Seq} {
		text := entry[digestSize+i*number:]
		if *n, err = strconv.ParseUint(text[:number], 10, 64); err != nil {
			return Receipt{}, ErrNotFound
		}
	}
	// As in write.lua: seq was lost since.
	if seq, err := counter.Uint64(); err != nil || receipt.Seq > seq {
		return Receipt{}, ErrNotFound
	}
	if entry[:digestSize] != request[len(request)-digestSize:] {
		return Receipt{}, ErrReused
	}
	return receipt, nil
}
