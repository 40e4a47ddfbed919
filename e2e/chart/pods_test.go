//go:build linux

package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// podList has the fields of pods that the tests need.
type podList struct {
	Items []pod
}

type pod struct {
	Metadata struct {
		Name              string
		DeletionTimestamp string
	}
	Status struct {
		Conditions                               []struct{ Type, Status string }
		ContainerStatuses, InitContainerStatuses []containerStatus
	}
}

type containerStatus struct {
	Name, ContainerID string
	RestartCount      int
	Ready             bool
}

func (p *pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// statusOf returns the status of a container; the sidecar is an init container.
func (p *pod) statusOf(name string) (containerStatus, error) {
	for _, c := range append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...) {
		if c.Name == name {
			return c, nil
		}
	}
	return containerStatus{}, fmt.Errorf("pod %s has no container %s", p.Metadata.Name, name)
}

// edgePods returns the edge's pods that are not terminating.
func (c *cluster) edgePods(t *testing.T) []pod {
	t.Helper()
	var list podList
	text := c.kubectl(t, "get", "pods", "--selector", c.selector, "--output", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	var pods []pod
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp == "" {
			pods = append(pods, p)
		}
	}
	return pods
}

func (c *cluster) onlyPod(t *testing.T) string {
	t.Helper()
	pods := c.edgePods(t)
	if len(pods) != 1 {
		t.Fatalf("got %d pods, want one", len(pods))
	}
	return pods[0].Metadata.Name
}

func (c *cluster) processID(t *testing.T, container string) int {
	t.Helper()
	status, err := c.edgePods(t)[0].statusOf(container)
	require.NoError(t, err)
	_, id, _ := strings.Cut(status.ContainerID, "://")
	pid := 0
	for line := range strings.Lines(run(t, "", "ctr", "tasks", "list")) {
		fmt.Sscanf(line, id+" %d", &pid)
	}
	if pid == 0 {
		t.Fatalf("no process of container %s", id)
	}
	return pid
}

// killContainer kills a container's first process, like a crash or the kernel.
func (c *cluster) killContainer(t *testing.T, container string) {
	t.Helper()
	before, err := c.edgePods(t)[0].statusOf(container)
	require.NoError(t, err)
	pid := c.processID(t, container)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	await(t, container+" is there again", func() error {
		pod := c.edgePods(t)[0]
		after, err := pod.statusOf(container)
		switch {
		case err != nil:
			return err
		case after.RestartCount != before.RestartCount+1:
			return fmt.Errorf("restarted %d times, want %d", after.RestartCount, before.RestartCount+1)
		case !after.Ready || !pod.ready():
			return errors.New("not ready")
		}
		return nil
	})
	c.awaitSettled(t)
}

// awaitSettled waits until the object was answered several times in a row. The node's rules for the service follow the
// pod's readiness within about a second, and so does the sidecar that refills Envoy.
func (c *cluster) awaitSettled(t *testing.T) {
	t.Helper()
	const enough = 40 // two seconds
	edge, row := c.edgeAddress(t), 0
	await(t, "the object is at the edge again", func() error {
		answer, err := http.Get("http://" + edge + "/products/1")
		if err != nil {
			row = 0
			return err
		}
		_ = answer.Body.Close()
		if row++; !isHit(answer) {
			row = 0
		}
		if row < enough {
			return fmt.Errorf("%d hits in a row, want %d", row, enough)
		}
		return nil
	})
}
