// Command gatehouse-pause waits until it is told to end. It holds the namespaces of the pods
// of package k8s: what every Kubernetes has as its pause image. It must stay static, so it
// imports nothing that needs the C library.
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
