//go:build linux

package chart

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/k8s"
)

// Images in the test's registry.
const (
	moduleImage  = registryAddress + "/gatehouse-module:dev"
	sidecarImage = registryAddress + "/gatehouse-sidecar"
)

// meshDir returns the directory that scripts/mesh-build.sh printed.
func meshDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("MESH")
	if dir == "" {
		t.Fatal("no MESH: run make mesh-e2e")
	}
	return dir
}

// newMesh starts everything that a mode for a mesh needs beside the cluster.
func newMesh(t *testing.T, mode, selector string) *cluster {
	c := newCluster(t, "wasm")
	c.selector = selector
	c.values = append(append(c.values, "--set", "mode="+mode), shop.values()...)
	publishTeams(t, "redis://"+k8s.Gateway+":"+redisPort)
	createNamespace(t)
	c.kubectl(t, "apply", "--filename", "testdata/backend.yaml")
	return c
}

// importImage imports an image with one of the programs in MESH/bin, and with further files.
func importImage(t *testing.T, reference, program string, files map[string]string) {
	t.Helper()
	entrypoint := "/usr/local/bin/" + program
	all := map[string]string{entrypoint: filepath.Join(meshDir(t), "bin", program)}
	maps.Copy(all, files)
	archive := filepath.Join(t.TempDir(), program+".tar")
	require.NoError(t, k8s.WriteImage(archive, reference, entrypoint, all))
	run(t, "", "ctr", "images", "import", archive)
}

// pushImage pushes an image of build/images to the registry.
func pushImage(t *testing.T, title, as string) {
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xf", "../../build/images/"+title+".tar", "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	image, err := index.Image(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	reference, err := name.ParseReference(as)
	require.NoError(t, err)
	require.NoError(t, remote.Write(reference, image))
}

// awaitForwarding waits until the edge forwards requests, and answers none itself.
func (c *cluster) awaitForwarding(t *testing.T) {
	t.Helper()
	await(t, "requests go upstream", func() error {
		upstream := c.upstream.Requests()
		answer, err := http.Get("http://" + c.edgeAddress(t) + "/config")
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK || c.upstream.Requests() == upstream {
			return fmt.Errorf("got %s", answer.Status)
		}
		return nil
	})
}

// upgradeRules upgrades to new rules. The pods stay.
func (c *cluster) upgradeRules(t *testing.T) {
	before := c.onlyPod(t)
	c.requestDuring(t, func() {
		c.helm(t, append(append([]string{"upgrade", release, chartDir}, c.values...), "--values", "testdata/upgrade.yaml")...)
		c.answersWith(t, "/reports", http.StatusUnauthorized)
	})
	c.checkSameAnswers(t)
	if got := c.onlyPod(t); got != before {
		t.Errorf("got another pod, %s for %s", got, before)
	}
}

// answersWith waits until a request without a credential gets a status several times in a row: workers take a new
// configuration one after the other.
func (c *cluster) answersWith(t *testing.T, path string, want int) {
	t.Helper()
	c.answersTo(t, path, nil, want)
}

// answersTo is answersWith for a request with this header.
func (c *cluster) answersTo(t *testing.T, path string, header http.Header, want int) {
	t.Helper()
	address, row := c.edgeAddress(t), 0
	await(t, fmt.Sprintf("%s%s is answered with %d", header.Get("Host"), path, want), func() error {
		answer, _ := get(t, address, path, header)
		if row++; answer.StatusCode != want {
			row = 0
		}
		if row < 10 {
			return fmt.Errorf("got %s", answer.Status)
		}
		return nil
	})
}

// revokeDevice revokes the device, whose credential was accepted before.
func (c *cluster) revokeDevice(t *testing.T) {
	c.ctl(t, "", "device", "revoke", device)
	await(t, "the device is refused", func() error {
		if answer, _ := c.get(t, "/config", credential); answer.StatusCode != http.StatusUnauthorized {
			return fmt.Errorf("got %s", answer.Status)
		}
		return nil
	})
	c.ctl(t, secret, "device", "put", device, "--secret-file=-", "--permissions=config.read")
	await(t, "the device is accepted again", func() error {
		if answer, _ := c.get(t, "/config", credential); answer.StatusCode != http.StatusOK {
			return fmt.Errorf("got %s", answer.Status)
		}
		return nil
	})
}

// refuseDuring sends requests without a required credential while f breaks something. A request may stay without an
// answer, but an answer must be a refusal.
func (c *cluster) refuseDuring(t *testing.T, f func()) {
	t.Helper()
	url, upstream := "http://"+c.edgeAddress(t)+"/config", c.upstream.Requests()
	done := make(chan struct{})
	var group sync.WaitGroup
	client := &http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	answers := map[int]int{} // by status; 0: none
	group.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			status := 0
			if answer, err := client.Get(url); err == nil {
				_ = answer.Body.Close()
				status = answer.StatusCode
			}
			answers[status]++
		}
	})
	f()
	close(done)
	group.Wait()
	t.Logf("answers by status: %v", answers)
	for status := range answers {
		if status != 0 && status != http.StatusUnauthorized && status != http.StatusForbidden &&
			status != http.StatusServiceUnavailable {
			t.Errorf("a request without a credential was answered with %d", status)
		}
	}
	if got := c.upstream.Requests() - upstream; got != 0 {
		t.Errorf("the upstream saw %d of these requests, want none", got)
	}
}
