//go:build linux

package k8s

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// zone is the suffix of the names of services.
const zone = "cluster.local"

// startDNS serves the names of services to pods, like a cluster's DNS, and no other names.
func (n *node) startDNS(ctx context.Context) error {
	err := n.startProgram("dns", "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=",
		"--user=root", "--log-facility=-",
		"--listen-address="+Gateway, "--bind-interfaces", "--no-resolv", "--no-hosts", "--local=/"+
			zone+"/", "--hostsdir="+n.path("names"))
	if err != nil {
		return err
	}
	watch := exec.CommandContext(ctx, n.findProgram("kubectl"), "get", "services", "--all-namespaces", "--watch",
		"--output", `jsonpath={.spec.clusterIP} {.metadata.name}.{.metadata.namespace}.svc.`+zone+`{"\n"}`)
	var said bytes.Buffer
	watch.Env, watch.Stderr = n.environment(), &said
	services, err := watch.StdoutPipe()
	if err != nil {
		return err
	}
	if err := watch.Start(); err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	go func() {
		for lines := bufio.NewScanner(services); lines.Scan(); {
			if err := n.addName(lines.Text()); err != nil {
				n.endCluster(err)
				return
			}
		}
		n.endCluster(fmt.Errorf("the watch of services ended: %v: %s", watch.Wait(), &said))
	}()
	return nil
}

// addName adds a service to the DNS: a line with address and name. Names are never removed: the name of a deleted
// service resolves to an address without a listener.
func (n *node) addName(service string) error {
	address, name, _ := strings.Cut(service, " ")
	if _, err := netip.ParseAddr(address); err != nil {
		return nil // no address, like the API server's service before it has one, or a headless service
	}
	return os.WriteFile(n.path("names", name), []byte(service+"\n"), 0o644)
}
