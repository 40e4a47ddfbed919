//go:build linux

// Package chart installs the chart in a real cluster and breaks parts of the cluster. The tests run inside the cluster
// that scripts/chart-e2e.sh, which `make chart-e2e` calls, starts.
package chart

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/k8s"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

const (
	namespace = "gatehouse"
	release   = "edge"
	chartDir  = "../../charts/gatehouse"

	// Ports at the address that pods can reach: all are free in this network namespace. The manifests in testdata name the
	// upstream's, too.
	upstreamPort, redisPort, registryPort = "3000", "6379", "5000"

	registryAddress = k8s.Gateway + ":" + registryPort

	// patience bounds every wait.
	patience = 60 * time.Second
)

type cluster struct {
	t        *testing.T
	edgeKind string // envoy or nginx: the name of its container, and of its values
	selector string // of the edge's pods and service
	entry    string // selector of another service that requests go to; empty: the edge's
	listener int    // which of the service's ports requests go to
	agent    string // the node's agent, if that is the edge's sidecar
	upstream *upstream.Handler
	values   []string // of helm, for every installation
}

// newCluster starts everything that the chart needs beside the cluster, for an edge of this kind: wasm, native or
// nginx.
func newCluster(t *testing.T, edge string) *cluster {
	if os.Getenv("KUBECONFIG") == "" || os.Getenv("CONTAINERD_ADDRESS") == "" {
		t.Fatal("not in its own cluster: run make chart-e2e")
	}
	edgeKind := "envoy"
	if edge == "nginx" {
		edgeKind = "nginx"
	}
	c := &cluster{t: t, edgeKind: edgeKind, upstream: new(upstream.Handler),
		selector: "app.kubernetes.io/component=gateway"}
	c.serve(upstreamPort, c.upstream)
	c.serve(registryPort, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	c.values = []string{
		"--values", "testdata/values.yaml", "--set", "upstream.host=" + k8s.Gateway, "--set", "upstream.port=" + upstreamPort,
		"--set", "redis.url=redis://" + c.startRedis(), "--set", "redis.acceptLossAfter=1s", "--set", "edge=" + edge,
	}
	return c
}

// serve serves HTTP at the address that pods can reach.
func (c *cluster) serve(port string, handler http.Handler) {
	listener, err := net.Listen("tcp", k8s.Gateway+":"+port)
	require.NoError(c.t, err)
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	c.t.Cleanup(func() { _ = server.Close() })
}

// startRedis runs a redis-server at the address that pods can reach.
func (c *cluster) startRedis() string {
	cmd := exec.Command("redis-server", "--bind", k8s.Gateway, "--port", redisPort, "--protected-mode", "no", "--save", "")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		c.t.Fatalf("%v: the test runs against a real Redis; see scripts/install-packages.sh", err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Logf("redis-server: %s", &log)
		}
	})
	return k8s.Gateway + ":" + redisPort
}

// run runs a program and returns its standard output.
func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	out, err := runProgram(t.Context(), stdin, name, args...)
	require.NoError(t, err)
	return out
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "", "kubectl", append([]string{"--namespace", namespace}, args...)...)
}

func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "", "helm", append([]string{"--namespace", namespace}, args...)...)
}

// ctl runs gatehousectl as an operator does, in the container of the sidecar or the agent.
func (c *cluster) ctl(t *testing.T, stdin string, args ...string) {
	t.Helper()
	at := []string{"--namespace", c.agent, "exec", "--stdin", c.agentSet()}
	if c.agent == "" {
		at = []string{"--namespace", namespace, "exec", "--stdin", c.onlyPod(t)}
	}
	run(t, stdin, "kubectl", append(append(at, "--container", "gatehouse-sidecar", "--", "gatehousectl"), args...)...)
}

// failure returns an error with the program's output.
type failure struct {
	command string
	err     error
	said    string
}

func (f *failure) Error() string {
	return f.command + ": " + f.err.Error() + ": " + strings.TrimSpace(f.said)
}

func runProgram(ctx context.Context, stdin, name string, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), &failure{name + " " + strings.Join(args, " "), err, out.String() + said.String()}
	}
	return out.String(), nil
}

// await calls check until it returns nil.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
