package bypass

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// alterations are check's findings about changes of the edge's answers.
var alterations = []string{"GH0312", "GH0321", "GH0322", "GH0323", "GH0324", "GH0612"}

// TestAnswersOnEnvoy runs an edge with each setting that acts on responses. Whenever an answer differs from the answer
// of the same Envoy without the setting, check must report an alteration, and else none.
func TestAnswersOnEnvoy(t *testing.T) {
	t.Parallel()
	for _, kind := range []stack.EdgeKind{stack.EnvoyEdge, stack.NativeEdge} {
		t.Run(string(kind), func(t *testing.T) {
			seed, _ := seedAndNumbers(t)
			r := rand.New(rand.NewPCG(seed, 0))
			chosen := allSettings(r)
			chosen = append(chosen, combineSettings(r, chosen, 100)...)
			if kind == stack.EnvoyEdge { // a VM starts for each listener
				r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
				chosen = chosen[:100]
			}
			w := newWorld(t, kind, publishAnswers)
			w.compareSettings(chosen)
		})
	}
}

// setting is a part of a configuration that acts on responses, or might.
type setting struct {
	name  string
	apply func(g *gen) // in Envoy's configuration
	// uncertain: the setting's effect depends on requests beyond forms.
	uncertain bool
	// pair: the setting consists of two settings, which Envoy may refuse together.
	pair bool
}

// combineSettings combines settings at random. One setting may undo the change of the second.
func combineSettings(r *rand.Rand, of []setting, n int) (all []setting) {
	for range n {
		a, b := of[r.IntN(len(of))], of[r.IntN(len(of))]
		all = append(all, setting{a.name + ", and " + b.name, func(g *gen) { a.apply(g); b.apply(g) }, true, true})
	}
	return all
}

// compareSettings runs an edge for each setting, and compares the answers with answers of an edge without a setting.
func (w *world) compareSettings(settings []setting) {
	n := 0
	var plain []reply
	for some := range slices.Chunk(append([]setting{{}}, settings...), 100) { // Envoy stops to answer while it adds more
		n++
		ports, file := reservePorts(w.t, len(some)), &config{}
		for i, s := range some {
			g := newGen(w, 1, 0, ports[i:i+1])
			g.buildEdge()
			clear(g.rules)
			for name, value := range parse("%s", answerRules) {
				g.rules[name] = value
			}
			g.edge["name"] = fmt.Sprintf("%d.%d", n, i)
			g.hcm["delayed_close_timeout"] = "0s" // ask reads until the connection ends
			if s.apply != nil {
				s.apply(g)
			}
			file.file, file.clusters = append(file.file, g.edge), g.clusters
		}
		w.deploy(n, []*config{file})
		found := w.findAlterations(file)
		for i, s := range some {
			plain = w.judgeAnswer(s, ports[i], plain, found[fmt.Sprintf("%d.%d", n, i)])
		}
	}
	w.reportAnswers(len(settings))
}

// judgeAnswer compares the answers of an edge with a setting with check's findings and with plain, the answers without
// a setting, which are nil for the first edge. It returns plain.
func (w *world) judgeAnswer(s setting, port int, plain []reply, found []finding) []reply {
	w.t.Helper()
	if !isListening(port) {
		if !s.pair {
			w.t.Errorf("%s: the proxy refuses it", s.name)
		}
		return plain
	}
	got := requestAll(w.t, port)
	var changes []string
	for i, f := range forms {
		if plain == nil {
			if !strings.Contains(got[i].status, f.status) || found != nil {
				w.t.Fatalf("%s: got %s, want %s; check finds %v", f.name, got[i].status, f.status, found)
			}
			continue
		}
		for _, change := range plain[i].describeChanges(got[i]) {
			changes = append(changes, f.name+": "+change)
		}
	}
	if plain == nil {
		return got
	}
	if len(changes) > 0 {
		w.differ++
	}
	switch {
	case len(changes) > 0 && found == nil:
		w.t.Errorf("%s: no finding, but answers change: %s", s.name, strings.Join(changes, "; "))
	case len(changes) == 0 && found != nil && !s.uncertain:
		w.t.Errorf("%s: no answer changes, but check finds %v", s.name, found)
	}
	return plain
}

func (w *world) reportAnswers(settings int) {
	w.t.Logf("%d settings × %d forms of an answer; %d settings change answers", settings, len(forms), w.differ)
}

// findAlterations returns the findings of check, by listener.
func (w *world) findAlterations(c *config) map[string][]finding {
	found := map[string][]finding{}
	for listeners := range slices.Chunk(c.file, 12) { // check compares listeners with each other
		path := filepath.Join(w.dir, "answers.json")
		require.NoError(w.t, os.WriteFile(path, []byte(marshal(tree{"static_resources": tree{
			"listeners": append(slices.Clone(listeners), w.push), "clusters": append(slices.Clone(c.clusters), w.sidecar)},
			"admin": w.admin, "stats_config": w.stats})), 0o600))
		for _, f := range runCheck(w.t, path) {
			if slices.Contains(alterations, f.Code) {
				found[f.Listener] = append(found[f.Listener], f)
			}
		}
	}
	return found
}

const answerRules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
	{"match": {"prefix": "/private/"}, "auth": {"permissions": ["read"]}, "cache": {}},
	{"match": {"prefix": "/forbidden/"}, "auth": {"permissions": ["write"]}},
	{"match": {"prefix": "/"}, "cache": {}}]}`

// publishAnswers publishes objects of all forms.
func publishAnswers(ctx context.Context, redisURL string) error {
	client, err := redisurl.Connect(redisURL)
	if err != nil {
		return err
	}
	defer client.Close()
	p := publish.New(client)
	device := publish.Device{ID: "d1", Secret: secret, Cost: 4, Permissions: []string{"read"}}
	if _, err := p.PutDevice(ctx, device); err != nil {
		return err
	}
	// The edge's own Last-Modified appears two seconds after the publish.
	dated := publish.Header{Name: "last-modified", Value: "Wed, 01 Jan 2025 00:00:00 GMT"}
	fresh := publish.Header{Name: "cache-control", Value: "max-age=600"}
	german := publish.Header{Name: "content-language", Value: "de"}
	text := strings.Repeat("the quick brown fox jumps over the lazy dog; ", 40)
	for _, o := range []publish.Object{
		{Key: "/text", ETag: `"text"`, Body: []byte(text), ContentType: "text/plain", Headers: []publish.Header{dated, fresh, german}},
		{Key: "/private/json", ETag: `"json"`, Body: []byte(`{"a":"` + text + `"}`), ContentType: "application/json",
			Headers: []publish.Header{dated}},
		{Key: "/tiny", ETag: `"tiny"`, Body: []byte("q8Zr1LmXw0KdVt7bYhJc3fNs5GpAe9uT"), ContentType: "text/html", Headers: []publish.Header{dated}},
		{Key: "/empty", ETag: `"empty"`, Body: nil, ContentType: "text/plain", Headers: []publish.Header{dated}},
		{Key: "/missing", ETag: `"missing"`, Body: []byte("no " + text), ContentType: "text/html", Status: 404,
			Headers: []publish.Header{dated}},
		{Key: "/gone", ETag: `"gone"`, Body: []byte("gone"), ContentType: "text/html", Status: 410,
			Headers: []publish.Header{dated}},
		{Key: "/moved", ETag: `"moved"`, Body: []byte("moved"), ContentType: "text/html", Status: 308,
			Headers: []publish.Header{dated, {Name: "location", Value: "/text"}}},
	} {
		if _, err := p.Put(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// forms are requests for each form of an answer.
var forms = []struct {
	name, status, line string
	fields             []string
}{
	{"200", "200", "GET /text", nil},
	{"br", "200", "GET /text", []string{"accept-encoding: br"}},
	{"gzip", "200", "GET /text", []string{"accept-encoding: gzip"}},
	{"zstd", "200", "GET /text", []string{"accept-encoding: zstd"}},
	{"identity of several", "200", "GET /tiny", []string{"accept-encoding: gzip, br, zstd"}},
	{"HEAD", "200", "HEAD /text", nil},
	{"HEAD br", "200", "HEAD /text", []string{"accept-encoding: br"}},
	{"206", "206", "GET /text", []string{"range: bytes=10-99", "accept-encoding: gzip, br, zstd"}},
	{"416", "416", "GET /text", []string{"range: bytes=99999-"}},
	{"304", "304", "GET /text", []string{`if-none-match: "text"`}},
	{"304 br", "304", "GET /text", []string{`if-none-match: *`, "accept-encoding: br"}},
	{"304 by date", "304", "GET /text", []string{"if-modified-since: Wed, 01 Jan 2025 00:00:00 GMT"}},
	{"empty", "200", "GET /empty", []string{"accept-encoding: gzip"}},
	{"404", "404", "GET /missing", nil},
	{"404 gzip", "404", "GET /missing", []string{"accept-encoding: gzip"}},
	{"410", "410", "GET /gone", nil},
	{"308", "308", "GET /moved", nil},
	{"private", "200", "GET /private/json", []string{"x-device-id: d1", "x-device-token: " + secret}},
	{"private br", "200", "GET /private/json", []string{"x-device-id: d1", "x-device-token: " + secret,
		"accept-encoding: br"}},
	{"refused: 401", "401", "GET /private/json", nil},
	{"refused: 403", "403", "GET /forbidden/x", []string{"x-device-id: d1", "x-device-token: " + secret}},
}

// reply is an answer octet by octet.
type reply struct {
	form, status string
	lines        []string // in lower case, sorted; those of Envoy itself are not among them
	body         string
}

// requestAll sends all forms of requests to a port, each on its own connection.
func requestAll(t *testing.T, port int) (all []reply) {
	for _, f := range forms {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", networkAddress, port), time.Second)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.WriteString(conn, f.line+" HTTP/1.1\r\nhost: edge.example\r\nconnection: close\r\n"+
			strings.Join(append(f.fields, "\r\n"), "\r\n"))
		require.NoError(t, err)
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		head, body, _ := strings.Cut(string(text), "\r\n\r\n")
		status, rest, _ := strings.Cut(head, "\r\n")
		r := reply{form: f.name, status: status, body: body}
		for line := range strings.SplitSeq(rest, "\r\n") {
			name, value, _ := strings.Cut(line, ":")
			switch name = strings.ToLower(name); name {
			case "date", "server", "connection":
				continue
			case "content-type":
				if strings.Contains(status, "416") { // without content, it is the proxy's
					continue
				}
			case "age":
				value = "SECONDS"
			case "vary":
				for item := range strings.SplitSeq(value, ",") {
					r.lines = append(r.lines, "vary: "+strings.ToLower(strings.TrimSpace(item)))
				}
				continue
			}
			r.lines = append(r.lines, name+": "+strings.TrimSpace(value))
		}
		slices.Sort(r.lines)
		all = append(all, r)
	}
	return all
}

// describes matches header lines that describe or carry content or its caching (RFC 9110 and 9111).
var describes = regexp.MustCompile(`^(content-.*|etag|last-modified|age|cache-control|expires|pragma|location|retry-after|` +
	`accept-ranges|www-authenticate|transfer-encoding|trailer|cache-status):`)

// describeChanges describes how another reply differs. Added headers are no difference: settings may add headers. A
// refusal may have another text.
func (r *reply) describeChanges(other reply) (all []string) {
	refusal := strings.HasPrefix(r.form, "refused")
	if r.status != other.status {
		all = append(all, r.status+" becomes "+other.status)
	}
	if r.body != other.body && !refusal {
		all = append(all, fmt.Sprintf("the body %.40q becomes %.40q", r.body, other.body))
	}
	text := func(line string) bool {
		return refusal && (strings.HasPrefix(line, "content-") || strings.HasPrefix(line, "transfer-encoding"))
	}
	for _, line := range r.lines {
		if !slices.Contains(other.lines, line) && !text(line) {
			all = append(all, "lost: "+line)
		}
	}
	for _, line := range other.lines {
		if !slices.Contains(r.lines, line) && describes.MatchString(line) && !text(line) {
			all = append(all, "added: "+line)
		}
	}
	return all
}
