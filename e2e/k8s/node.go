//go:build linux

package k8s

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Node runs as the first process of the namespaces: it starts the cluster, runs the command and returns the command's
// exit status. When Node ends, the kernel ends everything else. Orphans that end before Node stay zombies: they are
// few, a shim for each pod.
func Node(ctx context.Context, dir string, o Options) (status int, err error) {
	begin := time.Now()
	n := &node{layout: layout{dir}, bin: o.Bin, died: make(chan error, 1)}
	for _, step := range []func() error{n.hideDirectories, n.writeFiles, n.createBridge} {
		if err := step(); err != nil {
			return 0, err
		}
	}
	if err := n.bootCluster(ctx, o.Images); err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "cluster: ready (%.1f s)\n", time.Since(begin).Seconds())
	return n.runCommand(ctx, o.Command)
}

type node struct {
	layout
	bin  string
	died chan error // the first exit of a program of the cluster
}

// runCommand runs the command, and stops waiting for the command if a part of the cluster ends.
func (n *node) runCommand(ctx context.Context, command []string) (status int, err error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = n.environment()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-n.died:
		return 0, err
	case err = <-ended:
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// environment returns the environment in which a command can use the cluster.
func (n *node) environment() []string {
	return append(os.Environ(), "KUBECONFIG="+n.kubeconfig(), "PATH="+n.bin+":"+os.Getenv("PATH"),
		"CONTAINERD_ADDRESS="+n.Containerd(), "CONTAINERD_NAMESPACE=k8s.io")
}

// hideDirectories hides directories with fixed paths, such as /run and /var, from programs that write there; no file
// remains.
func (n *node) hideDirectories() error {
	for _, dir := range []string{"var", "var.work"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		target, kind, data string
		flags              uintptr
	}{
		{"/", "", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"/proc", "proc", "", 0}, // of the namespaces of processes and network
		{"/run", "tmpfs", "", 0},
		{"/var", "overlay", "lowerdir=/var,upperdir=" + n.path("var") + ",workdir=" + n.path("var.work"), 0},
	} {
		if err := syscall.Mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	return n.hideSysctls()
}

// sysctls are the kernel settings that kubelet changes and no namespace isolates.
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// hideSysctls mounts writable files over the sysctls, for kubelet.
func (n *node) hideSysctls() error {
	for _, name := range sysctls {
		file, setting := n.path("sysctl", filepath.Base(name)), "/proc/sys/"+name
		value, err := os.ReadFile(setting)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(file), 0o755)
		}
		if err == nil {
			err = os.WriteFile(file, value, 0o644)
		}
		if err == nil {
			err = syscall.Mount(file, setting, "", syscall.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", setting, err)
		}
	}
	return nil
}

// createBridge makes the pods' bridge.
func (n *node) createBridge() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"}, {"link", "add", bridge, "type", "bridge"},
		{"addr", "add", Gateway + "/24", "dev", bridge}, {"link", "set", bridge, "up"},
		{"route", "add", "default", "dev", bridge}, // without a route, kube-proxy's rules don't apply
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}
