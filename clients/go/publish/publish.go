// Package publish writes objects and device credentials to Redis. All Gatehouse edges serve the objects and
// authenticate the devices. Package contract specifies the format.
//
//	p := publish.New(redis.NewClient(options))
//	_, err := p.Put(ctx, publish.Object{Key: "/v1/products/42", Body: body, ContentType: "application/json"})
//
// If ctx has a span of OpenTelemetry, the sidecars continue its trace until the edges have the change.
package publish

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// Errors for use with [errors.Is].
var (
	// ErrStale: the version is not newer than the stored version, and nothing was written. A writer that counts versions
	// should read the stored version before a retry.
	ErrStale = errors.New("stale version")
	// ErrNotFound: the object or device does not exist, or was deleted.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the contract does not allow the argument.
	ErrInvalid = errors.New("invalid")
	// ErrFull: the memory of Redis is used up, and nothing was written. Deletions and revocations still succeed.
	ErrFull = errors.New("redis is full (maxmemory): nothing was written; only deletions and revocations succeed")
	// ErrExists: an object exists at the key, or the device has a different record or was deleted within the last 24
	// hours. Nothing was written.
	ErrExists = errors.New("already exists")
	// ErrOutdated: the data in Redis needs a later release, and nothing was written: update the writer.
	ErrOutdated = errors.New("this writer is outdated")
	// ErrCorrupt: the contract does not allow the stored record. A new write replaces the record.
	ErrCorrupt = errors.New("corrupt record")
)

// Publisher writes to all shards, and is safe for concurrent use.
type Publisher struct {
	*store
	reader reader
	writer writer
}

// Option configures a Publisher.
type Option func(*Publisher)

// Shards sets the number of shards; the default is 1. All writers and sidecars of a namespace must have the same
// number; if Redis has a different number, writes fail with a [contract.ShardsError].
func Shards(n int) Option { return func(p *Publisher) { p.keyspace.Shards = contract.Shards(n) } }

// Namespace sets the namespace, 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit; the default is "", none.
// Edges read only the sidecar's namespace and Redis database.
func Namespace(name string) Option { return func(p *Publisher) { p.keyspace.Namespace = name } }

// Author sets the author in the audit of devices: at most contract.MaxAuthor bytes of printable ASCII without a blank
// at an end, "" for nobody; the default is [DefaultAuthor]. Other bytes become ?, and long names are cut.
func Author(name string) Option { return func(p *Publisher) { p.writer.author = name } }

// DefaultAuthor returns user@host of this process, as far as known and valid in an author.
func DefaultAuthor() string {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	author := name + "@" + host
	author = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, author))
	return author[:min(len(author), contract.MaxAuthor)]
}

// New returns a Publisher that uses client; the caller still closes client. Package redisurl makes clients for a single
// server, Sentinel or a Cluster.
func New(client redis.UniversalClient, options ...Option) *Publisher {
	s := &store{client: client, keyspace: contract.Keyspace{Database: redisurl.Database(client)}}
	p := &Publisher{s, reader{s}, writer{s, "PUBLISH", DefaultAuthor()}}
	if _, cluster := client.(*redis.ClusterClient); cluster {
		p.writer.by = "SPUBLISH" // PUBLISH would send events to every node of the Cluster
	}
	for _, option := range options {
		option(p)
	}
	return p
}

// Receipt identifies a recorded write.
type Receipt struct {
	// Version is the new version of the object or credential.
	Version uint64
	// Seq is the write's sequence number in its shard.
	Seq uint64
}

// Result is the outcome of a write.
type Result struct {
	Receipt
	Err error
}

// refuse returns an [ErrInvalid] that names the value and the limit.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{ErrInvalid}, args...)...)
}

func checkVersion(version uint64) error {
	if version > limits.MaxOwnVersion {
		return refuse("version %d: at most %d is allowed, 0 is the next one", version, uint64(limits.MaxOwnVersion))
	}
	return nil
}

// checkMember checks a key or id as contract does.
func checkMember(m contract.Member) error {
	if _, err := contract.ParseMember(m.String()); err != nil {
		return fmt.Errorf("%w %w", ErrInvalid, err)
	}
	return nil
}
