// Command gatehouse-pause waits for a signal to end. It holds the namespaces of the pods of package k8s, like the pause
// image of every Kubernetes. The binary must be static, so no import may need the C library.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
}
