package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestEditor opens the shipped configurations in yaml-language-server, as they are and with mistakes, and completes a
// field of a rule.
func TestEditor(t *testing.T) {
	t.Parallel()
	leaveToLongForm(t, "TestSchemaIsTheDecoder and TestEnvoy of package ruleschema")
	ls := startLanguageServer(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		file, schema string
		edits        []string // pairs of old and new
		want         []string // parts of the findings
	}{
		{"nginx/rules.yaml", "nginx/rules.schema.json", nil, nil},
		{"envoy/envoy.yaml", "envoy/envoy.schema.json", nil, nil},
		{"envoy/envoy-native.yaml", "envoy/envoy.schema.json", nil, nil},
		{"nginx/rules.yaml", "nginx/rules.schema.json",
			[]string{"max_staleness: 30s", "max_staleness: 30", "on_miss", "on_mis", "[POST]", "[PSOT]"},
			[]string{`Expected "string"`, "Property on_mis is not allowed", `Valid values: "ACL"`}},
		{"envoy/envoy.yaml", "envoy/envoy.schema.json",
			[]string{"default: pass", "default: maybe", "{scope: device}", "{scope: devise}", "push_listener: true",
				"push_listener: 1"},
			[]string{`Valid values: "pass", "deny"`, `Valid values: "shared", "device"`, `Expected "boolean"`}},
		{"envoy/envoy-native.yaml", "envoy/envoy.schema.json",
			[]string{"{path: /v1/fleet/config}", "{pathh: /v1/fleet/config}"},
			[]string{"Property pathh is not allowed", `Missing property`}},
	} {
		schema, err := os.ReadFile("../" + tt.schema)
		require.NoError(t, err)
		text, err := os.ReadFile("../" + tt.file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(tt.schema)), schema, 0o600))
		got := ls.openFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", len(ls.opened))),
			strings.NewReplacer(tt.edits...).Replace(string(text)))
		for _, want := range tt.want {
			if !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, want) }) {
				t.Errorf("%s, %q: got %q, want %q", tt.file, tt.edits, got, want)
			}
		}
		if len(tt.want) == 0 && len(got) > 0 {
			t.Errorf("%s: got %q, want nothing", tt.file, got)
		}
		const rule = "name: device-config\n"
		begin, rest, _ := strings.Cut(string(text), rule)
		line, indent := strings.Count(begin, "\n")+1, strings.Index(rest, "match")
		changed := begin + rule + strings.Repeat(" ", indent) + "se\n" + rest
		path := filepath.Join(dir, fmt.Sprintf("%d.yaml", len(ls.opened)))
		ls.openFile(path, changed)
		if labels := ls.completionsAt(path, line, indent+2); !slices.Contains(labels, "session") {
			t.Errorf("%s: completes %q, want session", tt.file, labels)
		}
	}
}

type languageServer struct {
	t      *testing.T
	in     io.Writer
	out    *bufio.Reader
	opened []string
}

// message is a protocol message, with the fields that the test needs.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result"`
}

func startLanguageServer(t *testing.T) *languageServer {
	t.Helper()
	program, err := exec.CommandContext(t.Context(), "../scripts/install-yaml-language-server.sh").Output()
	if err != nil {
		t.Fatalf("install-yaml-language-server.sh: %v", err)
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), 6*patience)
	cmd := exec.CommandContext(ctx, "node", strings.TrimSpace(string(program)), "--stdio")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // killed
	})
	ls := &languageServer{t: t, in: in, out: bufio.NewReader(out)}
	ls.send(message{ID: json.RawMessage("0"), Method: "initialize", Params: map[string]any{
		"processId": os.Getpid(), "rootUri": nil,
		"capabilities": map[string]any{"workspace": map[string]any{"configuration": true}}}})
	ls.receive(func(m message) bool { return string(m.ID) == "0" })
	ls.send(message{Method: "initialized", Params: map[string]any{}})
	return ls
}

func (ls *languageServer) send(m message) {
	ls.t.Helper()
	m.JSONRPC = "2.0"
	text, err := json.Marshal(m)
	if err == nil {
		_, err = fmt.Fprintf(ls.in, "Content-Length: %d\r\n\r\n%s", len(text), text)
	}
	require.NoError(ls.t, err)
}

// receive returns the first message that wanted accepts, and answers earlier questions of the server.
func (ls *languageServer) receive(wanted func(message) bool) message {
	ls.t.Helper()
	for {
		head, err := textproto.NewReader(ls.out).ReadMIMEHeader()
		if err != nil {
			ls.t.Fatalf("yaml-language-server: %v", err)
		}
		length, err := strconv.Atoi(head.Get("Content-Length"))
		require.NoError(ls.t, err)
		text := make([]byte, length)
		var m message
		if _, err = io.ReadFull(ls.out, text); err == nil {
			err = json.Unmarshal(text, &m)
		}
		require.NoError(ls.t, err)
		if wanted(m) {
			return m
		}
		if m.Method != "" && m.ID != nil {
			var result any
			if m.Method == "workspace/configuration" { // of yaml, http and more, in this order
				asked := m.Params.(map[string]any)["items"].([]any)
				settings := make([]any, len(asked))
				for i, item := range asked {
					if item.(map[string]any)["section"] == "yaml" {
						settings[i] = map[string]any{"validate": true, "completion": true,
							"schemaStore": map[string]any{"enable": false}}
					}
				}
				result = settings
			}
			ls.send(message{ID: m.ID, Result: result})
		}
	}
}

// openFile opens a file with this text, and returns the findings.
func (ls *languageServer) openFile(path, text string) (found []string) {
	ls.t.Helper()
	ls.opened = append(ls.opened, path)
	ls.send(message{Method: "textDocument/didOpen", Params: map[string]any{"textDocument": map[string]any{
		"uri": "file://" + path, "languageId": "yaml", "version": 1, "text": text}}})
	m := ls.receive(func(m message) bool {
		params, _ := m.Params.(map[string]any)
		return m.Method == "textDocument/publishDiagnostics" && params["uri"] == "file://"+path
	})
	for _, finding := range m.Params.(map[string]any)["diagnostics"].([]any) {
		found = append(found, finding.(map[string]any)["message"].(string))
	}
	return found
}

// completionsAt returns the completions at a position of an open file.
func (ls *languageServer) completionsAt(path string, line, character int) (labels []string) {
	ls.t.Helper()
	ls.send(message{ID: json.RawMessage("1"), Method: "textDocument/completion", Params: map[string]any{
		"textDocument": map[string]any{"uri": "file://" + path},
		"position":     map[string]any{"line": line, "character": character}}})
	m := ls.receive(func(m message) bool { return m.Method == "" && string(m.ID) == "1" })
	list, _ := m.Result.(map[string]any)
	items, _ := list["items"].([]any)
	for _, item := range items {
		labels = append(labels, item.(map[string]any)["label"].(string))
	}
	return labels
}
