//go:build linux

package k8s

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// bootPatience bounds how long a part of the cluster may take to start.
const bootPatience = 2 * time.Minute

// bootCluster starts all programs, loads the images meanwhile, and returns when the node is ready.
func (n *node) bootCluster(ctx context.Context, images []string) error {
	if err := n.startProgram("containerd", "containerd", "--config", n.path("containerd.toml")); err != nil {
		return err
	}
	if err := n.startControl(); err != nil {
		return err
	}
	if err := n.loadImages(ctx, images); err != nil {
		return err
	}
	if err := n.awaitReady(ctx, "the API server", n.apiReady); err != nil {
		return err
	}
	if err := n.startRest(); err != nil {
		return err
	}
	if err := n.startDNS(ctx); err != nil {
		return err
	}
	return n.awaitReady(ctx, "the node", func(ctx context.Context) error {
		return n.runTool(ctx, "kubectl", "wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=1s")
	})
}

// startControl starts etcd and the API server.
func (n *node) startControl() error {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	err := n.startProgram("etcd", "etcd", "--name", nodeName, "--data-dir", n.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", nodeName+"="+peer)
	if err != nil {
		return err
	}
	key := n.path("certs", "service-account.pem")
	return n.startProgram("apiserver", "kube-apiserver", "--etcd-servers="+client, "--bind-address="+Gateway,
		"--secure-port=6443", "--cert-dir="+n.path("certs"),
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+n.path("tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range="+serviceNet,
		"--allow-privileged=true", "--kubelet-preferred-address-types=Hostname")
}

// startRest starts the programs that need the API server.
func (n *node) startRest() error {
	kubeconfig := "--kubeconfig=" + n.kubeconfig()
	for _, p := range [][]string{
		{"controller-manager", "kube-controller-manager", kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false",
			"--service-account-private-key-file=" + n.path("certs", "service-account.pem"),
			"--root-ca-file=" + n.path("certs", "apiserver.crt"), "--cert-dir=" + n.path("certs", "controller-manager")},
		{"scheduler", "kube-scheduler", kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false",
			"--cert-dir=" + n.path("certs", "scheduler")},
		{"kubelet", "kubelet", kubeconfig, "--config=" + n.path("kubelet.yaml"), "--root-dir=" + n.path("kubelet"),
			"--cert-dir=" + n.path("certs", "kubelet"), "--hostname-override=" + nodeName, "--node-ip=" + Gateway},
		{"proxy", "kube-proxy", kubeconfig, "--proxy-mode=iptables", "--hostname-override=" + nodeName,
			"--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256", "--cluster-cidr=10.244.0.0/16",
			// The kernel's conntrack table is global, not the namespace's: don't change it.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"},
	} {
		if err := n.startProgram(p[0], p[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// loadImages imports the images, and makes images of two programs of this machine: the pause program and Redis.
func (n *node) loadImages(ctx context.Context, images []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	for reference, program := range map[string]string{
		pauseImage: filepath.Join(filepath.Dir(self), "gatehouse-pause"), redisImage: redis,
	} {
		archive := n.path(filepath.Base(program) + ".tar")
		if err := WriteImage(archive, reference, program, map[string]string{program: program}); err != nil {
			return fmt.Errorf("image %s: %w", reference, err)
		}
		images = append(images, archive)
	}
	err = n.awaitReady(ctx, "containerd", func(ctx context.Context) error { return n.runTool(ctx, "ctr", "version") })
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := n.runTool(ctx, "ctr", "images", "import", image); err != nil {
			return err
		}
	}
	return nil
}

// startProgram runs a program until the namespaces end. The program's log is in Dir.
func (n *node) startProgram(name string, command ...string) error {
	log, err := os.Create(n.path("log", name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd := exec.Command(n.findProgram(command[0]), command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, n.environment()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		n.endCluster(fmt.Errorf("%s ended: %v; its log is %s", name, cmd.Wait(), log.Name()))
	}()
	return nil
}

// endCluster ends the cluster for this reason, unless the cluster is already ending.
func (n *node) endCluster(reason error) {
	select {
	case n.died <- reason:
	default:
	}
}

// runTool runs a program; an error has the program's output.
func (n *node) runTool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, n.findProgram(name), args...)
	cmd.Env = n.environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}

// findProgram returns the program's path in Bin if it is there, otherwise the name alone, for PATH.
func (n *node) findProgram(name string) string {
	path := filepath.Join(n.bin, name)
	if _, err := os.Stat(path); err != nil {
		return name
	}
	return path
}

// awaitReady calls check until it returns nil or bootPatience has passed.
func (n *node) awaitReady(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case died := <-n.died:
			return died
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w", what, bootPatience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// apiReady requests the API server's readiness. The server's certificate is self-signed.
func (n *node) apiReady(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+Gateway+":6443/readyz", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz: %s", answer.Status)
	}
	return nil
}
