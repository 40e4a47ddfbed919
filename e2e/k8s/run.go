//go:build linux

package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Options are the options of a cluster.
type Options struct {
	Bin     string   // directory with the programs of scripts/k8s-build.sh
	Images  []string // archives to load
	Command []string // runs once the node is ready, with KUBECONFIG, PATH and CONTAINERD_ADDRESS set
}

// nodeVerb is the argument with which [Run] runs this program again, to call [Node].
const nodeVerb = "node"

// Run runs a command in a cluster that lives as long as the command, and returns the command's exit status. The command
// has the caller's output. On an error the logs stay, and the error names their directory.
func Run(ctx context.Context, o Options) (status int, err error) {
	unlock, err := lockMachine()
	if err != nil {
		return 0, err
	}
	defer unlock()
	dir, err := os.MkdirTemp("", "gatehouse-k8s-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, removeCgroups()) }()

	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	args := []string{nodeVerb, "--dir", dir, "--bin", o.Bin}
	for _, image := range o.Images {
		args = append(args, "--image", image)
	}
	cmd := exec.CommandContext(ctx, self, append(args, o.Command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = newNamespaces()
	err = onOneThread(cmd.Run)
	if exit, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil && exit.Exited() {
		status, err = exit.ExitCode(), nil
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("cluster: %w; logs are in %s", err, filepath.Join(dir, "log")), keepLogsOnly(dir))
	}
	if status != 0 {
		fmt.Fprintf(os.Stderr, "cluster: logs are in %s\n", filepath.Join(dir, "log"))
		return status, keepLogsOnly(dir)
	}
	return 0, os.RemoveAll(dir)
}

// newNamespaces returns the attributes of a node's process: new namespaces, and an end together with the thread that
// started the process.
func newNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWUTS,
		Pdeathsig: syscall.SIGKILL,
	}
}

// keepLogsOnly removes images and volumes, because they are large.
func keepLogsOnly(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != "log" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// lockMachine waits until no other cluster runs on this machine: the kubelet's cgroups have fixed names.
func lockMachine() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(os.TempDir(), "gatehouse-k8s.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: waiting for another one to end, which holds %s\n", file.Name())
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
	return func() { _ = file.Close() }, nil
}
