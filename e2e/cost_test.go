package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// flooder sends requests on one HTTP/2 connection, with HPACK's index as far as possible, which costs the sender very
// little.
type flooder struct {
	conn    net.Conn
	framer  *http2.Framer
	out     *bufio.Writer
	block   bytes.Buffer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
	stream  uint32
	status  string // of the last answer
}

func newFlooder(t *testing.T, address string) *flooder {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	f := &flooder{conn: conn, out: bufio.NewWriter(conn), stream: 1}
	f.framer = http2.NewFramer(f.out, bufio.NewReader(conn))
	f.encoder = hpack.NewEncoder(&f.block)
	f.decoder = hpack.NewDecoder(4096, func(h hpack.HeaderField) {
		if h.Name == ":status" {
			f.status = h.Value
		}
	})
	_, err = f.out.WriteString(http2.ClientPreface)
	if err = errors.Join(err, f.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}),
		f.framer.WriteWindowUpdate(0, 1<<30)); err != nil {
		t.Fatal(err)
	}
	return f
}

// together is the number of concurrent requests, fewer than Envoy allows.
const together = 50

// send sends a request n times; n is a multiple of together. Returned are the status, and the bytes of a request whose
// headers are indexed.
func (f *flooder) send(n int, headers [][2]string) (size int, status string, err error) {
	if err := f.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, "", err
	}
	for range n / together {
		for range together {
			f.block.Reset()
			for _, h := range headers {
				if err := f.encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
					return 0, "", err
				}
			}
			size = f.block.Len()
			if err := f.writeBlock(); err != nil {
				return 0, "", err
			}
			f.stream += 2
		}
		if err := f.out.Flush(); err != nil {
			return 0, "", err
		}
		if err := f.awaitAnswers(); err != nil {
			return 0, "", err
		}
	}
	return size, f.status, nil
}

// writeBlock writes the header block as one request.
func (f *flooder) writeBlock() error {
	const most = 16384 // bytes of a frame, RFC 9113, section 4.2
	block := f.block.Bytes()
	first := block[:min(most, len(block))]
	err := f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: first,
		EndStream: true, EndHeaders: len(block) <= most})
	for block = block[len(first):]; len(block) > 0 && err == nil; {
		part := block[:min(most, len(block))]
		block = block[len(part):]
		err = f.framer.WriteContinuation(f.stream, len(block) == 0, part)
	}
	return err
}

// awaitAnswers reads until all outstanding requests are answered.
func (f *flooder) awaitAnswers() error {
	for answered := 0; answered < together; {
		frame, err := f.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = f.framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			_, err = f.decoder.Write(frame.HeaderBlockFragment())
			if frame.StreamEnded() {
				answered++
			}
		case *http2.DataFrame:
			if frame.StreamEnded() {
				answered++
			}
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("a stream was reset: %s", frame.ErrCode)
		case *http2.GoAwayFrame:
			err = fmt.Errorf("the connection was ended: %s %s", frame.ErrCode, frame.DebugData())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withBare adds a listener that equals the edge's, but without the filter. The listener itself answers requests for the
// host "refused", as the filter answers refused requests.
func withBare(address string, rules string) func(*stack.Config) error {
	return func(c *stack.Config) error {
		if err := c.SetRules(rules); err != nil {
			return err
		}
		listeners, err := c.Find("static_resources", "listeners")
		if err != nil {
			return err
		}
		edge, err := c.Find("static_resources", "listeners", "edge")
		if err != nil {
			return err
		}
		var tree map[string]any
		if err := edge.Decode(&tree); err != nil {
			return err
		}
		var all []any
		if err := listeners.Decode(&all); err != nil {
			return err
		}
		if err := c.Set(append(all, tree), "static_resources", "listeners"); err != nil {
			return err
		}
		at := []string{"static_resources", "listeners", fmt.Sprint(len(all))}
		manager := append(slices.Clone(at), "filter_chains", "0", "filters", "0", "typed_config")
		filters, err := c.Find(append(manager, "http_filters")...)
		if err != nil {
			return err
		}
		router := filters.Content[len(filters.Content)-1]
		return errors.Join(
			c.Set("bare", append(at, "name")...),
			c.SetAddress(address, at...),
			c.Set([]any{router}, append(manager, "http_filters")...),
			c.Set([]any{
				map[string]any{"name": "refused", "domains": []string{"refused"}, "routes": []any{map[string]any{
					"match":           map[string]any{"safe_regex": map[string]any{"regex": "[^?]*"}},
					"direct_response": map[string]any{"status": 401, "body": map[string]any{"inline_string": "unauthorized\n"}}}}},
				map[string]any{"name": "upstream", "domains": []string{"*"}, "routes": []any{map[string]any{
					"match": map[string]any{"prefix": "/"}, "route": map[string]any{"cluster": "upstream"}}}},
			}, append(manager, "route_config", "virtual_hosts")...))
	}
}

// costlyRequests returns the most expensive requests for the filter; see TestNothingCostsMuch of package main.
func costlyRequests() map[string][][2]string {
	request := func(method, path string, more ...[2]string) [][2]string {
		return append([][2]string{{":method", method}, {":scheme", "http"}, {":authority", "refused"},
			{":path", path}}, more...)
	}
	many := func(n int, name, value string) (more [][2]string) {
		for i := range n {
			more = append(more, [2]string{strings.ReplaceAll(name, "#", fmt.Sprint(i)),
				strings.ReplaceAll(value, "#", fmt.Sprint(i))})
		}
		return more
	}
	var forged [][2]string
	signs := "!$%&'*+.^`|~-"
	for i := range 90 {
		forged = append(forged, [2]string{"x" + string(signs[i%13]) + "gatehouse" + string(signs[i/13]) + "device", "v"})
	}
	query := "/v1/fleet/config?"
	for i := range 63 {
		query += strings.Repeat("q", 20) + fmt.Sprintf("%02d=", 63-i) + strings.Repeat("v", 38) + "&"
	}
	return map[string][][2]string{
		"parameters":        request("post", "/v1/telemetry/"+strings.Repeat("a;/", 1290)),
		"few parameters":    request("post", "/v1/telemetry/"+strings.Repeat("a;/", 80)),
		"escapes":           request("post", "/files/"+strings.Repeat("%61", 1300)),
		"escapes twice":     request("post", "/files/"+strings.Repeat("%2561", 780)),
		"bad, long":         request("post", "/files/"+strings.Repeat("%ff", 5000)),
		"bad, live":         request("post", "/v1/fleet/config"+strings.Repeat("%ff", 127)+"%2561"),
		"overlong, live":    request("post", "/v1/fleet/config"+strings.Repeat("%c0%af", 120)+"%2561"),
		"overlong, live, v": request("post", "/v1/"+strings.Repeat("%c0%af", 120)+"%2561"),
		"forged":            request("GET", "/files/x", forged...),
		"forged one":        request("GET", "/files/x", many(90, "x!gatehouse-device", "v")...),
		"override":          request("GET", "/files/x", many(90, "x-http-method-override", "v")...),
		"none-match":        request("GET", "/v1/products/a", many(4, "if-none-match", strings.Repeat(`"",`, 1300))...),
		"none-match short":  request("GET", "/v1/products/a", many(4, "if-none-match", strings.Repeat(`W/"",`, 790))...),
		"encodings many":    request("GET", "/v1/products/a", many(90, "accept-encoding", strings.Repeat("a,", 25))...),
		"query":             request("GET", strings.Replace(query, "fleet/config", "products/a", 1)),
		"credentials": request("GET", "/v1/fleet/config", append(many(45, "x-device-id", "a"),
			many(45, "x-device-token", "a")...)...),
		"plain long":      request("GET", "/files/"+strings.Repeat("a", 8000)),
		"plain, too long": request("GET", "/files/"+strings.Repeat("a", 15000)),
		"slashes 4k":      request("GET", "/files"+strings.Repeat("/a", 2000)),
	}
}

// TestNothingCostsMuch: no request costs Envoy much more with the filter than without it, at most as much as two plain
// refusals.
func TestNothingCostsMuch(t *testing.T) {
	leaveToLongForm(t, "TestNothingCostsMuch of package edge")
	bare, err := freeport.FindAddress()
	require.NoError(t, err)
	const rules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 2s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- match: {prefix: /v1/telemetry, methods: [POST]}
  auth: {permissions: [telemetry.write]}
- match: {prefix: /v1/products/}
  cache: {query: [lang]}
- match: {path: /v1/fleet/config}
  auth: {permissions: [config.read]}
  cache: {}
`
	e := start(t, stack.Options{Concurrency: 1, ModifyConfig: withBare(bare, rules)})
	e.put("/v1/products/a", "a")
	await(t, "published", patience, func() error {
		if a := e.send("GET /v1/products/a"); a.body != "a" {
			return fmt.Errorf("got %d", a.status)
		}
		return nil
	})
	server := []proc.Server{{Name: "Envoy", PID: e.EdgePID(), Workers: "wrk:"}}
	cost := func(address string, headers [][2]string) (time.Duration, int, string) {
		t.Helper()
		const n = 2000
		f := newFlooder(t, address)
		if _, _, err := f.send(together, headers); err != nil {
			t.Fatal(err)
		}
		before, err := proc.ReadUsage(server)
		require.NoError(t, err)
		size, status, err := f.send(n, headers)
		require.NoError(t, err)
		after, err := proc.ReadUsage(server)
		require.NoError(t, err)
		return time.Duration(after.Since(before).CPU["Envoy"] * float64(time.Second) / n), size, status
	}
	edge := strings.TrimPrefix(e.EdgeURL(), "http://")
	refusal := [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "refused"},
		{":path", "/v1/fleet/config"}}
	if _, _, status := cost(edge, refusal); status != "401" {
		t.Fatalf("a plain refusal: got %s, want 401", status)
	}
	for name, headers := range costlyRequests() {
		for attempt := 1; ; attempt++ { // other load can disturb one attempt, but hardly three
			plain, _, _ := cost(edge, refusal)
			with, size, status := cost(edge, headers)
			if status == "200" {
				headers[2][1] = "passes"
			}
			without, _, other := cost(bare, headers)
			t.Logf("%s: %s, %d bytes: %v, without the filter %v (%s): %.1f plain 401 of %v", name, status,
				size, with, without, other, float64(with-without)/float64(plain), plain)
			if with-without <= 2*plain {
				break
			}
			if attempt == 3 {
				t.Errorf("%s: the filter adds %v, want at most twice the %v of a plain 401", name, with-without, plain)
				break
			}
		}
	}
}
