// Command gatehouse-share-verdicts writes to Redis that secrets of devices are right, like a sidecar after bcrypt with
// the fleet's secret (--verdict.secret-file). The load test runs the command, because bcrypt for a million devices
// would take too long:
//
//	gatehouse-share-verdicts REDIS_URL SECRET_FILE HASH <DEVICES
//
// Each line of the standard input is a device and its secret, separated by a space. HASH is the only hash of the first
// version of each device's record. The verdicts hold for a day, or for the sidecars' --verdict.pin-ttl if less.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/sharedverdict"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gatehouse-share-verdicts REDIS_URL SECRET_FILE HASH <DEVICES")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "gatehouse-share-verdicts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, secretFile, hash string, devices io.Reader) error {
	secret, err := os.ReadFile(secretFile)
	if err != nil {
		return err
	}
	client, err := redisurl.Settings{URL: url, Deadlines: true}.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return shareVerdicts(ctx, client, bytes.TrimSpace(secret), contract.Keyspace{}, hash, devices)
}

// shareVerdicts writes a verdict for each device, a thousand in a round trip.
func shareVerdicts(ctx context.Context, client redis.UniversalClient, secret []byte, k contract.Keyspace,
	hash string, devices io.Reader) error {
	lines := bufio.NewScanner(devices)
	for more := true; more; {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for p.Len() < 1000 {
				if more = lines.Scan(); !more {
					break
				}
				device, deviceSecret, _ := strings.Cut(lines.Text(), " ")
				c := credential.Question{Device: device, Secret: deviceSecret, Version: 1, Hashes: []string{hash}}
				sharedverdict.ShareMatch(ctx, p, secret, k, &c,
					&credential.Match{Hash: hash, Until: time.Now().Add(24 * time.Hour)})
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("share verdicts: %w", err)
		}
	}
	return lines.Err()
}
