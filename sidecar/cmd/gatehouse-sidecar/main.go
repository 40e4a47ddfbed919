// Gatehouse-sidecar keeps an Envoy's shared memory in step with Redis, and verifies
// credentials for it. See docs/operate.md.
package main

import (
	"context"
	"os"

	// Authorities for Redis over TLS where the system has none, as in an image from scratch.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/gatehouse/gatehouse/verify/hasher"
)

func main() {
	if hasher.IsHasher(os.Args) {
		os.Exit(hasher.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
