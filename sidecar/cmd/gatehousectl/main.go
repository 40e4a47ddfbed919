// Command gatehousectl publishes objects and device credentials, and checks Envoy
// configurations. Exit code: 0 ok, 1 runtime, 2 usage or configuration.
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // errors are printed once, by run
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
