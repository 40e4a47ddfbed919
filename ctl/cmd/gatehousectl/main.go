// Command gatehousectl publishes objects and device credentials, and checks configurations of Envoy and nginx. Exit
// code: 0 ok, 1 runtime, 2 usage or configuration, 3 no such object or device, 4 new rules let in who was kept out.
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
