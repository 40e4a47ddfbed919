package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// limitBlocks returns the fenced blocks of a language in a part of docs/devices.md.
func limitBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/devices.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "\n## Limit each device\n")
	part, _, _ = strings.Cut(part, "\n## ")
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(part, -1) {
		blocks = append(blocks, found[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/devices.md limits nothing in %s", language)
	}
	return blocks
}

// TestLimitByDevice follows docs/devices.md and the comments of envoy.yaml: each device has 60 requests at once.
func TestLimitByDevice(t *testing.T) {
	t.Parallel()
	opts := stack.Options{}
	if onNginx() {
		blocks := limitBlocks(t, "nginx")
		opts.ModifyNginx = func(config string) string {
			config = strings.Replace(config, "\n  upstream service {", "\n"+blocks[0]+"\n  upstream service {", 1)
			return regexp.MustCompile(`(?s)\n    location / \{.*?\n    \}\n`).ReplaceAllLiteralString(config, "\n"+blocks[1])
		}
	} else {
		shipped, err := os.ReadFile("../envoy/envoy.yaml")
		if err != nil {
			t.Fatal(err)
		}
		opts.ConfigPath = writeFile(t, "envoy.yaml", strings.ReplaceAll(string(shipped), "#limit ", ""))
	}
	e := start(t, opts)
	limitsEachDevice(t, e)
}

// limitsEachDevice sends more than 60 requests of a device, and others.
func limitsEachDevice(t *testing.T, e *edge) {
	t.Helper()
	for _, id := range []string{"busy", "other"} {
		e.device(id, "secret", 4, "telemetry.write", "config.read")
	}
	e.put("/v1/products/1", "hit")
	e.put("@busy/v1/me/config", "hit")
	busy, other := credential("busy", "secret"), credential("other", "secret")
	e.until("the object", says("hit"), "GET /v1/products/1")
	for range 200 { // from one client that claims to be the device
		if a := e.send("GET /open", "x-gatehouse-device: busy"); a.status != 200 {
			t.Fatalf("without a rule: got %d, want 200", a.status)
		}
		if a := e.send("POST /v1/telemetry", append(credential("busy", "wrong"), "x-gatehouse-device: busy")...); a.status < 400 {
			t.Fatalf("a wrong secret: got %d, want a refusal", a.status)
		}
	}
	passed, refused := 0, 0
	for i := range 150 {
		switch a := e.send("POST /v1/telemetry", append(slices.Clone(busy), "x-gatehouse-device: other")...); a.status {
		case 200:
			if passed++; refused == 0 && i < 60 {
				continue
			}
		case 429:
			if refused++; i < 60 {
				t.Fatalf("request %d: got 429, want the first 60 to pass", i)
			}
		default:
			t.Fatalf("request %d: got %d %q", i, a.status, a.body)
		}
	}
	if refused == 0 || passed > 100 {
		t.Errorf("%d of the device's requests passed, %d were refused; want 60 at once and some refused", passed, refused)
	}
	for range 60 {
		if a := e.send("POST /v1/telemetry", append(slices.Clone(other), "x-gatehouse-device: busy")...); a.status != 200 {
			t.Fatalf("another device: got %d, want 200", a.status)
		}
	}
	for range 100 {
		if a := e.send("GET /v1/me/config", busy...); a.body != "hit" {
			t.Fatalf("a hit of the device: got %d %q, want it", a.status, a.body)
		}
	}
}
