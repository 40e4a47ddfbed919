//go:build linux

package k8s

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// probeVerb is the argument with which [Preflight] runs this program again, in new namespaces, to call [Probe].
const probeVerb = "probe"

// Preflight returns the missing prerequisites of a cluster on this machine. It tries in new namespaces what it can't
// determine otherwise.
func Preflight() (missing []string) {
	if os.Geteuid() != 0 {
		return []string{"not root: containers need namespaces, mounts and cgroups"}
	}
	for _, p := range []struct{ program, pkg string }{
		{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"iptables", "iptables"}, {"ip", "iproute2"},
		{"dnsmasq", "dnsmasq-base"}, {"redis-server", "redis-server"},
	} {
		if _, err := exec.LookPath(p.program); err != nil {
			missing = append(missing, fmt.Sprintf("no %s: apt-get install %s", p.program, p.pkg))
		}
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(cniPlugins, plugin)); err != nil {
			missing = append(missing, fmt.Sprintf("no %s/%s: apt-get install containernetworking-plugins", cniPlugins, plugin))
		}
	}
	missing = append(missing, missingCgroups()...)
	if len(missing) > 0 {
		return missing
	}
	return tryNamespaces()
}

// missingCgroups returns the controllers that kubelet needs and can't use.
func missingCgroups() (missing []string) {
	unified, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // version 2
	for _, controller := range []string{"cpu", "cpuset", "memory", "pids"} {
		if err == nil {
			if !strings.Contains(" "+strings.TrimSpace(string(unified))+" ", " "+controller+" ") {
				missing = append(missing, "no cgroup controller "+controller+" in /sys/fs/cgroup/cgroup.controllers")
			}
			continue
		}
		dir := "/sys/fs/cgroup/" + controller // version 1
		if err := syscall.Access(dir, 2 /* W_OK */); err != nil {
			missing = append(missing, fmt.Sprintf("no cgroup controller %s: %s: %v", controller, dir, err))
		}
	}
	return missing
}

// tryNamespaces does the first steps of a node in namespaces.
func tryNamespaces() []string {
	dir, err := os.MkdirTemp("", "gatehouse-k8s-probe-")
	if err != nil {
		return []string{err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self, err := os.Executable()
	if err != nil {
		return []string{err.Error()}
	}
	cmd := exec.Command(self, probeVerb, "--dir", dir)
	cmd.SysProcAttr = newNamespaces()
	var out []byte
	err = onOneThread(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		return []string{fmt.Sprintf("a try in new namespaces failed: %v: %s", err, strings.TrimSpace(string(out)))}
	}
	return nil
}

// Probe tries mounts, bridge and firewall in its own namespaces.
func Probe(dir string) error {
	n := &node{layout: layout{dir}}
	if err := errors.Join(n.hideDirectories(), n.createBridge()); err != nil {
		return err
	}
	for _, table := range []string{"nat", "filter"} {
		if out, err := exec.Command("iptables", "-t", table, "-S").CombinedOutput(); err != nil {
			return fmt.Errorf("iptables -t %s: %w: %s", table, err, out)
		}
	}
	// The matches in kube-proxy's rules: a kernel can lack some.
	for _, rule := range []string{
		"-m comment --comment x -m statistic --mode random --probability 0.5 -j RETURN",
		"-m conntrack --ctstate NEW -j RETURN", "-p tcp -j DNAT --to-destination 10.0.0.1:80",
		"-m mark --mark 0x1/0x1 -j RETURN", "-m addrtype --dst-type LOCAL -j RETURN",
	} {
		args := append([]string{"-t", "nat", "-A", "PREROUTING"}, strings.Fields(rule)...)
		if out, err := exec.Command("iptables", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
