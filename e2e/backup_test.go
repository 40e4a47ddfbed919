package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestBackup follows docs/redis.md: the page's commands back Redis up, and restore the backup into an empty server. The
// edge goes on meanwhile, and has the backup's state afterwards: a later revocation is undone.
func TestBackup(t *testing.T) {
	t.Parallel()
	leaveToNative(t)
	section := readSection(t, "../docs/redis.md", "## Backup and restore")
	commands := regexp.MustCompile(`(?m)^    redis-cli -u URL .*$`).FindAllString(section, -1)
	if len(commands) != 2 {
		t.Fatalf("docs/redis.md: want the commands of redis-cli that back up and switch appendonly on, got %q", commands)
	}
	server, dir := redistest.StartServer(t), t.TempDir()
	run := func(command string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.Replace(command, "URL", "redis://"+server.Address, 1))
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	e := reuse(t, stack.Options{RedisURL: "redis://" + server.Address, Seed: stack.AcceptLoss(contract.Keyspace{}),
		SidecarArgs: []string{"--verdict.allow-ttl=10m"}, Concurrency: 1})
	state := func(body string, status int) {
		t.Helper()
		e.awaitAnswer("the object "+body, hasBody(body), "GET /v1/products/1")
		e.awaitAnswer("the device", hasStatus(status), "POST /v1/telemetry", credential("dev", "secret")...)
	}
	e.put("/v1/products/1", "old")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	state("old", 200)
	run(commands[0])
	e.put("/v1/products/1", "new")
	e.ctl("device", "revoke", "dev")
	state("new", 401)

	server.Kill()
	state("new", 401)
	require.NoError(t, os.Rename(filepath.Join(dir, "gatehouse.rdb"), filepath.Join(server.Dir, "dump.rdb")))
	server.Restart()
	run(commands[1])
	state("old", 200)
	said, err := gatehousectl(t, "status", "--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	if !strings.Contains(said, "Redis lost data, or may have") {
		t.Errorf("gatehousectl status: %v: %s; want that Redis lost data", err, said)
	}
}

// TestBackupInKubernetes follows the same page in Kubernetes, with a kubectl that runs what pods would run.
func TestBackupInKubernetes(t *testing.T) {
	t.Parallel()
	leaveToNative(t)
	section := readSection(t, "../docs/redis.md", "### In Kubernetes")
	commands := regexp.MustCompile(`(?m)^    kubectl .*$`).FindAllString(section, -1)
	if len(commands) != 12 {
		t.Fatalf("got %d commands, want 12: %q", len(commands), commands)
	}
	server, programs, dir := redistest.StartServer(t, "--appendonly", "yes"), t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"kubectl":      `case $1 in exec) while [ "$1" != -- ]; do shift; done; shift; cd ` + server.Dir + ` && exec "$@";; esac`,
		"gatehousectl": "",
		"redis-cli":    "PATH=${PATH#*:} exec redis-cli -p " + server.Port() + ` "$@"`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	run := func(command string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return string(out)
	}
	run("redis-cli set key old")
	run(commands[0])
	run("redis-cli set key new")
	for _, command := range commands[1:] {
		switch {
		case strings.HasSuffix(command, "--replicas=0"):
			server.Kill()
		case strings.HasSuffix(command, "--replicas=1"):
			server.Restart()
		}
		run(command)
	}
	if got := run("redis-cli get key"); got != "old\n" {
		t.Errorf("got %q, want the backup's value", got)
	}
}
