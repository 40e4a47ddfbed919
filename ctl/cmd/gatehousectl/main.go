// Command gatehousectl publishes objects and device credentials, and checks configurations of Envoy and nginx. Exit
// codes: 0 ok, 1 runtime, 2 usage or configuration, 3 object or device not found, 4 new rules admit refused requests.
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"

	// Authorities for Redis over TLS where the system has none, as in an image from scratch.
	_ "golang.org/x/crypto/x509roots/fallback"
)

func main() {
	logging.Disable() // errors are printed once, by run
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
