package publisher

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// described is a transport that compares each exchange with openapi.json.
type described struct {
	t        *testing.T
	next     http.RoundTripper
	document map[string]any
	compiler *jsonschema.Compiler
}

func newDescribed(t *testing.T, next http.RoundTripper) *described {
	t.Helper()
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
	require.NoError(t, err)
	d := &described{t: t, next: next, document: tree.(map[string]any), compiler: jsonschema.NewCompiler()}
	require.NoError(t, d.compiler.AddResource("openapi.json", tree))
	return d
}

// at returns the node at a path, following a reference, and the node's JSON pointer; nil if missing.
func (d *described) at(path ...string) (map[string]any, string) {
	node, pointer := d.document, "#"
	for _, name := range path {
		next, _ := node[name].(map[string]any)
		if next == nil {
			return nil, ""
		}
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		if ref, found := next["$ref"].(string); found {
			return d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		}
		node = next
	}
	return node, pointer
}

// RoundTrip implements [http.RoundTripper].
func (d *described) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return answer, nil //nolint:nilerr // the test sees it
	}
	path, method := r.URL.EscapedPath(), strings.ToLower(r.Method)
	if strings.HasPrefix(path, "/v1/objects/") {
		path = "/v1/objects/{key}"
	}
	method = map[string]string{"head": "get", "purge": "delete"}[method] + method
	for _, other := range []string{"get", "delete"} {
		if strings.HasPrefix(method, other) && method != other {
			method = other
		}
	}
	status := strconv.Itoa(answer.StatusCode)
	operation, _ := d.at("paths", path, method)
	if operation == nil {
		if answer.StatusCode != 404 && answer.StatusCode != 405 && answer.StatusCode != 401 {
			d.t.Errorf("%s %s: %s, and is not described", r.Method, path, status)
		}
		path, method = "/v1/batch", "post" // whose problems have the form of all
	}
	response, pointer := d.at("paths", path, method, "responses", status)
	if response == nil {
		if answer.StatusCode < 400 {
			d.t.Errorf("%s %s: %s, which is not described", r.Method, path, status)
			return answer, nil
		}
		response, pointer = d.at("paths", path, method, "responses", "default")
	}
	content, _ := response["content"].(map[string]any)
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	name := "*/*"
	if _, found := content[name]; !found && content != nil {
		if name = kind; content[kind] == nil {
			d.t.Errorf("%s %s: %s with content type %q, which is not described", r.Method, path, status, kind)
			return answer, nil
		}
	}
	media, _ := content[name].(map[string]any)
	if media["schema"] == nil || r.Method == http.MethodHead {
		return answer, nil
	}
	pointer += "/content/" + strings.ReplaceAll(name, "/", "~1") + "/schema"
	schema, err := d.compiler.Compile("openapi.json" + pointer)
	if err != nil {
		d.t.Errorf("schema %s: %v", pointer, err)
		return answer, nil
	}
	texts := [][]byte{body}
	if kind == "application/x-ndjson" {
		texts = bytes.Split(bytes.TrimSpace(body), []byte("\n"))
	}
	for _, text := range texts {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			d.t.Errorf("%s %s: %s: %.300s: %v", r.Method, path, status, text, err)
		}
	}
	return answer, nil
}

// TestDescription: the description is served, and the server has each described operation.
func TestDescription(t *testing.T) {
	s := start(t)
	answer := s.do(t, "GET", "/openapi.json", nil, "")
	if answer.status != 200 || answer.body != string(openAPI) {
		t.Errorf("got %d, want the description", answer.status)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	require.NoError(t, json.Unmarshal(openAPI, &document))
	n := 0
	for path, operations := range document.Paths {
		for method := range operations {
			if !slices.Contains([]string{"get", "put", "post", "delete"}, method) {
				continue
			}
			n++
			path := strings.ReplaceAll(path, "{key}", "v1/products/1")
			if got := s.do(t, strings.ToUpper(method), path, shop, ""); got.status == 405 {
				t.Errorf("%s %s: %d", method, path, got.status)
			}
			if got := s.do(t, "PATCH", path, shop, ""); got.status != 405 || got.header.Get("Allow") == "" {
				t.Errorf("PATCH %s: %d, Allow %q", path, got.status, got.header.Get("Allow"))
			}
		}
	}
	if n < 6 {
		t.Errorf("%d operations are described", n)
	}
}
