// Package bypass checks gatehousectl check by black-box attacks. It makes random configurations with known protected
// resources, runs each in a real proxy, and asks for all protected resources without a credential, and with forged
// identities, in all known ways. Whenever a request gets through, check must have reported an error.
package bypass

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	runseed "github.com/gatehouse/gatehouse/clients/go/testbed/seed"
)

var (
	configs = flag.Int("configs", 200, "number of configurations")
	only    = flag.Int("only", -1, "number of a single configuration of a seed")
	checker = flag.String("check", "../../build/gatehousectl", "path of gatehousectl")
)

// hints are warnings about configurations that are a bypass or not, depending on the operator's intent.
var hints = []string{"GH0105", "GH0504", "GH0603", "GH0607", "GH0610", "GH1209", "GH1303"}

type finding struct {
	Code, Severity, Listener, Server, Message string
}

func runCheck(t *testing.T, path string) (all []finding) {
	t.Helper()
	out, err := exec.Command(*checker, "check", "--json", path).Output()
	var report struct{ Findings []finding }
	if json.Unmarshal(out, &report) != nil {
		t.Fatalf("%s check %s: %v", *checker, path, err)
	}
	return report.Findings
}

// tally counts the results of a run.
type tally struct {
	clean, alarms, refused, asked int
	open, missed                  map[string]int // by bypass
	first                         map[string]int // the number of configurations until a bypass was missed
}

func newTally() *tally {
	return &tally{open: map[string]int{}, missed: map[string]int{}, first: map[string]int{}}
}

func (n *tally) report(t *testing.T) {
	t.Logf("%d requests; %d clean configurations, %d with false alarms; %d of which the proxy refused something",
		n.asked, n.clean, n.alarms, n.refused)
	for _, name := range slices.Sorted(maps.Keys(n.open)) {
		t.Logf("%-50s open %3d, missed %3d, first after %d", name, n.open[name], n.missed[name], n.first[name])
	}
	if n.alarms*50 > n.clean {
		t.Errorf("%d of %d clean configurations have errors, more than 2 %%", n.alarms, n.clean)
	}
}

// seedAndNumbers returns the run's seed and numbers.
func seedAndNumbers(t *testing.T) (seed uint64, numbers []int) {
	t.Helper()
	seed = runseed.Of(t)
	t.Logf("repeat one: make bypass SEED=%d ONLY=N", seed)
	for n := range *configs {
		if *only < 0 || *only == n {
			numbers = append(numbers, n)
		}
	}
	if *only >= *configs {
		numbers = []int{*only}
	}
	return seed, numbers
}

// batch is how many configurations one Envoy serves at a time, and ports how many addresses each may have.
const batch, ports = 12, 16

func TestEnvoy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, onEnvoy(), seedRedis)
	seed, numbers := seedAndNumbers(t)
	sets := [2][]int{reservePorts(t, batch*ports), reservePorts(t, batch*ports)}
	n := newTally()
	for i := 0; len(numbers) > 0; i++ {
		size := min(batch, len(numbers))
		var all []*config
		for j, number := range numbers[:size] {
			all = append(all, generateConfig(w, seed, number, sets[i%2][j*ports:(j+1)*ports]))
		}
		numbers = numbers[size:]
		w.deploy(i+1, all)
		for _, c := range all {
			w.judgeConfig(c, n)
		}
	}
	n.report(t)
}

// judgeConfig runs check on a configuration, and sends requests that try to bypass the rules.
func (w *world) judgeConfig(c *config, n *tally) {
	path := filepath.Join(w.dir, fmt.Sprintf("%d.conf", c.n))
	require.NoError(w.t, os.WriteFile(path, []byte(c.text), 0o600))
	found := runCheck(w.t, path)
	errors := slices.DeleteFunc(slices.Clone(found), func(f finding) bool {
		return f.Severity != "error" && !slices.Contains(hints, f.Code)
	})
	leak, p := w.findLeak(c, n)
	n.countConfig(w.t, c, leak, errors)
	if leak != "" && len(errors) == 0 {
		kept := keepFile(w.t, path)
		w.t.Errorf("%d (%s %q): %s: %s, and check finds nothing in %s", c.n, c.kind, c.bypasses, p, leak, kept)
	}
}

func (n *tally) countConfig(t *testing.T, c *config, leak string, found []finding) {
	if c.kind == "clean" {
		n.clean++
		if slices.ContainsFunc(found, func(f finding) bool { return f.Severity == "error" }) {
			n.alarms++
			t.Logf("%d (clean): %v: %s", c.n, found, c.text)
		}
	}
	if leak == "" {
		if c.kind == "bypass" {
			n.open[c.bypasses[0]] += 0
		}
		return
	}
	name := c.kind
	if c.kind == "bypass" {
		name = c.bypasses[0]
	}
	n.open[name]++
	if len(found) == 0 {
		if n.missed[name]++; n.missed[name] == 1 {
			n.first[name] = c.n + 1
		}
	}
}

// keepFile copies a configuration to a path that survives the test.
func keepFile(t *testing.T, path string) string {
	dir := filepath.Join("..", "..", "build", "bypass")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	kept := filepath.Join(dir, filepath.Base(path))
	require.NoError(t, os.WriteFile(kept, text, 0o600))
	return kept
}

// findLeak returns the first leak of a configuration, and the probe that found it.
func (w *world) findLeak(c *config, n *tally) (leak string, by *probe) {
	refused := 0
	asked := map[string]probe{}
	for _, port := range c.ports {
		if !isListening(port) {
			refused++
			continue
		}
		probes := w.probesFor(c)
		clients := []*prober{{address: fmt.Sprintf("%s:%d", networkAddress, port)}}
		for _, name := range c.names[port] {
			name, protocol, _ := strings.Cut(name, "/")
			secure := &tls.Config{ServerName: name, InsecureSkipVerify: true}
			if protocol != "" {
				secure.NextProtos = []string{protocol}
			}
			clients = append(clients, &prober{address: clients[0].address, tls: secure})
		}
		if len(clients) > 1 {
			clients = clients[1:]
		}
		if c.names[port] != nil || c.streamed[port] { // nobody reads requests there, or somebody behind
			probes = slices.DeleteFunc(probes, func(p probe) bool {
				return p.version2 || p.upgrade != "" || p.host != "edge.example" && p.host != "pub.example"
			})
		}
		for _, client := range clients {
			if leak, by = w.sendAll(c, n, client, probes, asked); leak != "" {
				return leak, by
			}
		}
	}
	if refused > 0 {
		n.refused++
		if c.kind != "wild" {
			w.t.Logf("%d (%s %q): the proxy refuses it: %s", c.n, c.kind, c.bypasses, w.envoyLogEnd())
		}
	}
	for ask, p := range asked { // what arrived later than the answer, as copies of requests
		if leak = w.describeLeak(c, &p, ask, ""); leak != "" {
			return leak, &p
		}
	}
	return "", nil
}

// sendAll sends probes, and returns the first leak, and its probe.
func (w *world) sendAll(c *config, n *tally, client *prober, probes []probe, asked map[string]probe) (string, *probe) {
	defer client.close()
	if client.tls != nil {
		conn, err := client.dial()
		if err != nil {
			return "", nil // nothing serves this name
		}
		_ = conn.Close()
	}
	for _, p := range probes {
		w.asks++
		n.asked++
		ask := fmt.Sprintf("%d-%d", c.n, w.asks)
		asked[ask] = p
		if leak := w.describeLeak(c, &p, ask, client.send(&p, ask)); leak != "" {
			return leak, &p
		}
	}
	return "", nil
}

func (w *world) envoyLogEnd() string {
	log, _ := os.ReadFile(filepath.Join(w.dir, "stack", string(w.EdgeKind())+".log"))
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-2):], "\n")
}
