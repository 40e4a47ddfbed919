package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// withoutJSON are the commands that have no --json, and why.
var withoutJSON = map[string]string{
	"device export":  "prints JSON lines anyway, as device import reads them",
	"schema":         "prints JSON anyway",
	"envoy render":   "writes files, and prints nothing",
	"envoy reload":   "the exit code is the answer; prints what check says",
	"nginx render":   "prints the file of the plugin",
	"nginx install":  "writes files, and prints nothing",
	"install-module": "writes a file; for init containers",
	"ready":          "the exit code is the answer; prints what the program says",
	"drain":          "the exit code is the answer; prints what the program says",
	"completion":     "prints a script",
	"man":            "prints a page",
}

// model is the grammar.
type model struct {
	t *testing.T
	*kong.Kong
}

func grammar(t *testing.T) *model {
	t.Helper()
	parser, err := newParser(&cli{}, io.Discard, io.Discard, func(string) string { return "" }, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return &model{t, parser}
}

// everything returns the program and all commands, including parents of commands.
func (m *model) everything() []*kong.Node {
	nodes := []*kong.Node{m.Model.Node}
	for i := 0; i < len(nodes); i++ {
		nodes = append(nodes, nodes[i].Children...)
	}
	return nodes
}

// flagOf returns a flag of the command itself, nil for none.
func flagOf(node *kong.Node, name string) *kong.Flag { return findFlag(node.Flags, name) }

// TestCommands: each command has everything that users expect. A new command gets help and examples by tags in run.go.
func TestCommands(t *testing.T) {
	m := grammar(t)
	for _, node := range m.Model.Leaves(false) {
		path := node.Path()
		if group := node.ClosestGroup(); group == nil || !slices.ContainsFunc(groups,
			func(g kong.Group) bool { return g.Key == group.Key }) {
			t.Errorf("%s: no group: add the tag group, one of those in grammar.go", path)
		}
		if !strings.HasSuffix(node.Help, ".") || len(node.Help) > 60 {
			t.Errorf("%s: the first sentence of its help is %q, want at most 60 bytes with a full stop", path, node.Help)
		}
		example := regexp.MustCompile(`gatehousectl ([^|>)]*)`).FindStringSubmatch(node.Tag.Get("example"))
		if example == nil {
			t.Errorf("%s: no example: add the tag example with a whole command line", path)
			continue
		}
		var args []string
		for _, word := range strings.Fields(example[1]) {
			args = append(args, strings.Trim(word, "'"))
		}
		if command, err := m.Parse(args); err != nil || command.Selected().Path() != path {
			t.Errorf("%s: its example %q is none: %v", path, example[0], err)
		}
		_, excepted := withoutJSON[path]
		flag := flagOf(node, "json")
		switch {
		case flag == nil && !excepted:
			t.Errorf("%s: no --json: embed jsonFlag, or give withoutJSON the reason", path)
		case flag != nil && excepted:
			t.Errorf("%s: has --json, so remove it from withoutJSON", path)
		case flag != nil && !flag.IsBool():
			t.Errorf("%s: --json takes a value", path)
		}
	}
	for path := range withoutJSON {
		if !slices.ContainsFunc(m.Model.Leaves(false), func(n *kong.Node) bool { return n.Path() == path }) {
			t.Errorf("withoutJSON: no command %s", path)
		}
	}
}

// TestFlagsMeanTheSame: a flag takes the same in all commands, and its variables are the same.
func TestFlagsMeanTheSame(t *testing.T) {
	several := map[string]string{
		"device":  "an id; audit selects by a pattern",
		"author":  "a name; audit selects by a pattern",
		"header":  "a header; explain's are also in files",
		"overlap": "how long; device list selects by whether there is one",
	}
	first := map[string]string{}
	for _, node := range grammar(t).everything() {
		for _, flag := range node.Flags {
			if !strings.HasSuffix(flag.Help, ".") {
				t.Errorf("%s --%s: the help %q has no full stop", node.Path(), flag.Name, flag.Help)
			}
			if regexp.MustCompile("^[A-Z]$").MatchString(flag.PlaceHolder) && flag.PlaceHolder != "N" {
				t.Errorf("%s --%s: placeholder %s, want a word", node.Path(), flag.Name, flag.PlaceHolder)
			}
			takes := fmt.Sprint(flag.IsBool(), " ", flag.PlaceHolder, " ", flag.Tag.Get("variable"))
			if before, found := first[flag.Name]; found && before != takes && several[flag.Name] == "" {
				t.Errorf("%s --%s: takes %s, in another command %s", node.Path(), flag.Name, takes, before)
			}
			first[flag.Name] = takes
			if flag.PlaceHolder == "HOST:PORT" && len(flagVariables(flag.Value)) == 0 {
				t.Errorf("%s --%s: an address without the tag variable", node.Path(), flag.Name)
			}
		}
	}
}

// TestJSON runs each command that has --json.
func TestJSON(t *testing.T) {
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	hold := operatorapi.Hold{Network: netip.MustParsePrefix("192.0.2.7/32"), Device: "d", Last: time.Now()}
	mux := http.NewServeMux()
	for path, v := range map[string]any{
		"/v1/status": operatorapi.Status{}, "/v1/held": []operatorapi.Hold{hold, hold}, "/v1/resync": operatorapi.Resyncing{},
		"/v1/explain": operatorapi.Explanation{Key: "/a", Device: &operatorapi.Device{}, Object: &operatorapi.Object{}},
		"/v1/top": operatorapi.Top{Rates: map[string]float64{"Requests a": 1},
			Objects: []operatorapi.Count{{Name: "/a"}}},
		"/v1/log-level": operatorapi.LogLevel{},
	} {
		mux.Handle(path, answer(v))
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	url := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(url, "redis://")})
	defer client.Close()
	client.HSet(t.Context(), contract.Keyspace{}.EdgesKey(), "a", "{}", "b", "{}")
	s := &shell{t, nil, map[string]string{"GATEHOUSE_REDIS": url,
		"GATEHOUSE_SIDECAR": strings.TrimPrefix(server.URL, "http://")}}
	rules := s.file("rules.yaml", "rules: [{name: a, match: {path: /a}, cache: {}}]")
	device := []string{"--secret-file", "-", "--cost", "4"}
	empty := newShell(t)
	ran := map[string]bool{"watch": true} // below
	for _, test := range []struct {
		shell   *shell
		command string
		stdin   string
		args    []string
		lines   int // 0: an object
	}{
		{s, "put", "{}", []string{"/a", "--file", "-"}, 0},
		{s, "put", "{}", []string{"/b", "--file", "-"}, 0},
		{s, "get", "", []string{"/a"}, 0},
		{s, "list", "", nil, 2},
		{s, "delete", "", []string{"/a"}, 0},
		{s, "sync", "", []string{filepath.Dir(rules), "/docs/"}, 1},
		{s, "purge", "", []string{"--prefix", "/docs/", "--dry-run"}, 0},
		{s, "purge", "", []string{"--all"}, 0},
		{s, "trim", "", nil, 0},
		{s, "snapshot", "", []string{filepath.Join(t.TempDir(), "snapshot")}, 0},
		{s, "device put", "s", append(device, "d", "--label", "fleet=eu"), 0},
		{s, "device put", "", []string{"e", "--generate", "--cost", "4"}, 0},
		{s, "device put", "", []string{"f", "--generate", "--api-key", "--cost", "4"}, 0},
		{s, "device rotate", "t", append(device, "d"), 0},
		{s, "device set", "", []string{"d", "--add", "p"}, 0},
		{s, "device get", "", []string{"d"}, 0},
		{s, "device list", "", nil, 3},
		{s, "device revoke", "", []string{"d"}, 0},
		{s, "device revoke", "", []string{"--all"}, 0},
		{s, "device invalidate", "", []string{"new"}, 0},
		{s, "device import", "id,secret\ng,x\n", []string{"-", "--cost", "4"}, 0},
		{s, "device import", "id,secret\ng,x\n", []string{"-", "--dry-run"}, 0},
		{s, "device delete", "", []string{"d"}, 0},
		{s, "audit", "", []string{"--device", "d"}, 5},
		{empty, "accept-loss", "", nil, 0},
		{s, "status", "", nil, 0},
		{s, "explain", "", []string{"/a", "--rules", rules}, 0},
		{s, "top", "", nil, 0},
		{s, "held", "", nil, 2},
		{s, "edges", "", nil, 2},
		{s, "resync", "", nil, 0},
		{s, "log-level", "", []string{"info"}, 0},
		{s, "check", "", []string{"../../../envoy/envoy.yaml"}, 0},
		{s, "rehearse", `{"method": "GET", "path": "/a"}`, []string{"--from", rules, "--to", rules, "-"}, 0},
	} {
		ran[test.command] = true
		if test.shell == empty {
			empty.env["GATEHOUSE_REDIS_SHARDS"] = "1"
		}
		out := test.shell.ok(test.stdin, slices.Concat(strings.Fields(test.command), test.args, []string{"--json"})...)
		if got := strings.Count(out, "\n"); test.lines > 0 && got != test.lines {
			t.Errorf("%s: %d lines, want %d of an object each:\n%s", test.command, got, test.lines, out)
		}
		checkObjects(t, test.command, out, max(test.lines, 1))
	}
	for _, node := range grammar(t).Model.Leaves(false) {
		if path := node.Path(); flagOf(node, "json") != nil && !ran[path] {
			t.Errorf("%s: TestJSON doesn't run it: add a line to its table", path)
		}
	}
	// Errors are the same.
	s.fails(exitNotFound, "not found", "", "get", "/none", "--json")
	s.fails(exitUsage, `invalid key "none": want`, "", "get", "none", "--json")

	// watch goes on until Redis ends.
	var watched logbuffer.Buffer
	ended := make(chan int)
	go func() {
		ended <- run([]string{"watch", "--json"}, nil, &watched, io.Discard, func(name string) string { return s.env[name] })
	}()
	await.Until(t, "an event", func() bool {
		s.ok("{}", "put", "/a", "--file", "-")
		return watched.String() != ""
	})
	client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub")
	if code := <-ended; code != exitRuntime {
		t.Errorf("watch: exit code %d", code)
	}
	checkObjects(t, "watch", watched.String(), strings.Count(watched.String(), "\n"))
}

// checkObjects checks that text is JSON objects with names in snake_case, except names from elsewhere.
func checkObjects(t *testing.T, command, text string, want int) {
	t.Helper()
	names := regexp.MustCompile("^[a-z][a-z0-9]*(_[a-z0-9]+)*$")
	free := []string{"labels", "rates", "headers"}
	var check func(at string, v any)
	check = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, value := range v {
				if !names.MatchString(name) {
					t.Errorf("%s: %s%s isn't snake_case", command, at, name)
				}
				if !slices.Contains(free, name) {
					check(at+name+".", value)
				}
			}
		case []any:
			for _, value := range v {
				check(at, value)
			}
		}
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	for n := 0; ; n++ {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) && n == want {
			return
		}
		if err != nil {
			t.Errorf("%s: after %d of %d objects: %v: %s", command, n, want, err, text)
			return
		}
		check("", object)
	}
}

// TestHelp: short for the program, and for a command its own flags first.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	s := newShell(t)
	if got := s.ok("", "--help"); strings.Count(got, "\n") > 60 || strings.Contains(got, "redis-password") {
		t.Errorf("%d lines, want at most 60 without Redis' flags:\n%s", strings.Count(got, "\n"), got)
	}
	m := grammar(t)
	for _, node := range m.Model.Leaves(false) {
		help := s.ok("", append(strings.Fields(node.Path()), "--help")...)
		before := -1
		example := "\n    " + node.Tag.Get("example") + "\n"
		for _, want := range []string{"\nExample:\n", example, "\nFlags of all commands:\n"} {
			at := strings.Index(help, want)
			if at <= before {
				t.Errorf("%s: no %q, or not there:\n%s", node.Path(), want, help)
			}
			before = at
		}
		if redis := strings.Index(help, "--help-redis"); redis < before || strings.Contains(help, "--redis-username") {
			t.Errorf("%s: Redis' flags:\n%s", node.Path(), help)
		}
		for _, flag := range node.Flags {
			if at := strings.Index(help, "\n  --"+flag.Name); at > before {
				t.Errorf("%s: --%s isn't among the first flags:\n%s", node.Path(), flag.Name, help)
			}
		}
	}
	help := strings.Join(strings.Fields(s.ok("", "put", "--help-redis")), " ")
	for _, flag := range m.Model.Flags {
		if isRedisFlag(flag) && !strings.Contains(help, "--"+flag.Name+"=") || len(flagVariables(flag.Value)) > 0 &&
			!strings.Contains(help, "Default: $"+flagVariables(flag.Value)[0]) {
			t.Errorf("--help-redis has no --%s with its variable:\n%s", flag.Name, help)
		}
	}
}

// TestVariables: a flag goes before its variable, and an empty variable is none.
func TestVariables(t *testing.T) {
	s := newShell(t)
	s.env["GATEHOUSE_SIDECAR"] = "127.0.0.1:2"
	for _, args := range [][]string{{"ready"}, {"status"}} {
		s.fails(exitRuntime, `http://127.0.0.1:2/`, "", args...)
		s.fails(exitRuntime, "--sidecar", "", args...)
		s.fails(exitRuntime, `http://127.0.0.1:1/`, "", append(args, "--sidecar", "127.0.0.1:1")...)
	}
	s.env["GATEHOUSE_EDGE_ADMIN"] = "127.0.0.1:3"
	s.fails(exitRuntime, "http://127.0.0.1:3/healthcheck/fail", "", "drain")
	s.fails(exitRuntime, "--admin or $GATEHOUSE_EDGE_ADMIN", "", "drain")
	s.fails(exitRuntime, "http://127.0.0.1:3/config_dump", "", "explain", "/a")
	s.env["GATEHOUSE_REDIS_SHARDS"] = ""
	s.ok("", "list")
	s.env["GATEHOUSE_REDIS_URL"], s.env["GATEHOUSE_REDIS"] = s.env["GATEHOUSE_REDIS"], ""
	s.ok("", "list")
	s.fails(exitUsage, "Try gatehousectl device set --help", "", "device", "set", "d", "--colour")
	s.fails(exitRuntime, "see gatehousectl --help-redis", "", "list", "--redis", "redis://127.0.0.1:1")
}
