package bypass

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// patience bounds a request.
const patience = 10 * time.Second

// probe is a request of an attacker.
type probe struct {
	version2     bool // HTTP/2
	method, path string
	host         string
	headers      [][2]string
	body         string
	as           string // the device whose credential it has, "" for none
	upgrade      string // asks for another protocol
	through      bool   // then asks for the path within it, and before only for an open one
}

func (p *probe) String() string {
	text := fmt.Sprintf("%s %s host=%s", p.method, p.path, p.host)
	if p.version2 {
		text = "HTTP/2 " + text
	}
	if p.upgrade != "" {
		text += " upgrade=" + p.upgrade
	}
	if p.through {
		text += " through it"
	}
	if p.as != "" {
		text += " as " + p.as
	}
	if len(p.headers) > 0 {
		text += fmt.Sprintf(" %q", p.headers)
	}
	return text
}

// prober sends probes to one port.
type prober struct {
	address string
	tls     *tls.Config // nil for none
	conn    net.Conn    // of HTTP/1.1
	reader  *bufio.Reader
	two     *http2conn.Conn
	stream  uint32
}

func (c *prober) dial() (net.Conn, error) {
	if c.tls == nil {
		return net.DialTimeout("tcp", c.address, patience)
	}
	return tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", c.address, c.tls)
}

func (c *prober) close() {
	c.drop()
	if c.two != nil {
		_ = c.two.Close()
		c.two = nil
	}
}

func (c *prober) drop() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// send sends a probe with a number, and returns the body of the answer, "" if there is none.
func (c *prober) send(p *probe, ask string) string {
	if p.version2 {
		return c.sendHTTP2(p, ask)
	}
	body, ok := c.sendHTTP1(p, ask)
	if !ok && p.upgrade == "" { // a connection that was closed meanwhile
		c.drop()
		body, _ = c.sendHTTP1(p, ask)
	}
	return body
}

func (p *probe) headerFields(ask string) [][2]string {
	fields := append([][2]string{{strings.ToLower(askHeader), ask}}, p.headers...)
	if p.as != "" {
		fields = append(fields, [2]string{"x-device-id", p.as}, [2]string{"x-device-token", secret})
	}
	return fields
}

func (p *probe) encodeHTTP1(ask string) string {
	path, method := p.path, p.method
	var b strings.Builder
	if p.through {
		path, method = "/open", "GET"
	}
	if p.upgrade == "CONNECT" {
		path, method = "service:80", "CONNECT"
	}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nhost: %s\r\n", method, path, p.host)
	for _, f := range p.headerFields(ask) {
		fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
	}
	switch p.upgrade {
	case "":
		fmt.Fprintf(&b, "content-length: %d\r\n", len(p.body))
	case "h2c":
		b.WriteString("connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n")
	case "websocket":
		b.WriteString("connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: " +
			"dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n")
	}
	return b.String() + "\r\n" + p.body
}

func (c *prober) sendHTTP1(p *probe, ask string) (body string, ok bool) {
	if p.upgrade != "" {
		c.drop()
		defer c.drop()
	}
	if c.conn == nil {
		conn, err := c.dial()
		if err != nil {
			return "", false
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c.conn, p.encodeHTTP1(ask)); err != nil {
		return "", false
	}
	res, err := http.ReadResponse(c.reader, &http.Request{Method: p.method})
	if err != nil {
		c.drop()
		return "", false
	}
	if p.upgrade != "" && (res.StatusCode == http.StatusSwitchingProtocols || p.upgrade == "CONNECT" &&
		res.StatusCode == http.StatusOK) {
		c.sendNegotiated(p, ask)
		return "", true
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.Close || p.upgrade != "" {
		c.drop()
	}
	return string(text), true
}

// sendNegotiated requests the path in the negotiated protocol.
func (c *prober) sendNegotiated(p *probe, ask string) {
	inner := &probe{method: p.method, path: p.path, host: p.host, headers: p.headers}
	if p.upgrade == "h2c" {
		var block bytes.Buffer
		coder := hpack.NewEncoder(&block)
		for _, f := range append([][2]string{{":method", p.method}, {":scheme", "http"}, {":path", p.path},
			{":authority", p.host}}, p.headerFields(ask)...) {
			_ = coder.WriteField(hpack.HeaderField{Name: strings.ToLower(f[0]), Value: f[1]})
		}
		framer := http2.NewFramer(c.conn, c.reader)
		_, _ = io.WriteString(c.conn, http2.ClientPreface)
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block.Bytes(),
			EndStream: true, EndHeaders: true})
		for {
			if frame, err := framer.ReadFrame(); err != nil || frame.Header().StreamID == 3 {
				return
			}
		}
	}
	if _, err := io.WriteString(c.conn, inner.encodeHTTP1(ask)); err != nil {
		return
	}
	if res, err := http.ReadResponse(c.reader, nil); err == nil {
		_ = res.Body.Close()
	}
}

func (c *prober) sendHTTP2(p *probe, ask string) string {
	if c.two == nil {
		two, err := http2conn.Dial(c.address, patience)
		if err != nil {
			return ""
		}
		c.two, c.stream = two, 1
		_ = two.Framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24})
	}
	_ = c.two.SetDeadline(time.Now().Add(patience))
	fields := [][2]string{{":method", p.method}, {":scheme", "http"}, {":path", p.path}, {":authority", p.host}}
	if p.upgrade == "websocket" {
		fields = [][2]string{{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "http"},
			{":path", p.path}, {":authority", p.host}}
	}
	for _, f := range p.headerFields(ask) {
		fields = append(fields, [2]string{strings.ToLower(f[0]), f[1]})
	}
	stream := c.stream
	c.stream += 2
	err := c.two.SendHeaders(stream, p.body == "" && p.upgrade == "", fields...)
	if err == nil && p.body != "" {
		err = c.two.Framer.WriteData(stream, true, []byte(p.body))
	}
	var answer *http2conn.Answer
	if err == nil {
		answer, err = c.two.ReadAnswer(stream)
	}
	if err != nil || p.upgrade != "" {
		_ = c.two.Close()
		c.two = nil
	}
	if answer == nil {
		return ""
	}
	return string(answer.Content)
}

// reader collects the paths, regexes and domains that an attacker knows from a configuration: configurations are no
// secret.
type reader struct {
	heads   []string // beginnings of paths
	regexes []string
	domains []string
}

func (r *reader) read(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			r.read(item)
		}
	case tree:
		for key, value := range v {
			text, _ := value.(string)
			switch {
			case text != "" && (key == "prefix" || key == "path" || key == "path_separated_prefix" || key == "prefix_rewrite") &&
				strings.HasPrefix(text, "/"):
				r.heads = append(r.heads, text)
			case text != "" && key == "regex":
				r.regexes = append(r.regexes, text)
			}
			if list, ok := value.([]any); ok && key == "domains" {
				for _, domain := range list {
					r.domains = append(r.domains, domain.(string))
				}
			}
			r.read(value)
		}
	}
}

var group = regexp.MustCompile(`\([^)]*\)`)

// pathVariants returns paths that a proxy may make of path.
func (r *reader) pathVariants(path string) (all []string) {
	all = append(all, path)
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		rest := path[i+1:]
		for _, head := range r.heads {
			all = append(all, strings.TrimSuffix(head, "/")+"/"+rest, head+rest)
		}
		for _, expression := range r.regexes {
			plain := strings.TrimSuffix(strings.TrimPrefix(expression, "^"), "$")
			literal := group.ReplaceAllLiteralString(plain, "")
			some := strings.Replace(strings.Replace(plain, "([a-z]+)", "y", 1), "(.*)", rest, 1)
			all = append(all, some, path[:i]+literal+path[i:], path[:i+1]+literal+path[i+1:])
		}
	}
	all = slices.DeleteFunc(all, func(p string) bool {
		return !strings.HasPrefix(p, "/") || strings.ContainsAny(p, " ^$()[]*+\\")
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// hostSpellings returns spellings of the configuration's hosts.
func (r *reader) hostSpellings() (all []string) {
	for _, domain := range r.domains {
		host := strings.ToLower(strings.TrimPrefix(strings.Replace(domain, "*", "some", 1), "."))
		all = append(all, host, strings.ToUpper(host), host+":1", host+":", host+":99999", host+".", host+".:1", "b."+host)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// pathSpellings returns spellings that some servers take for the path.
func pathSpellings(path string) []string {
	at := strings.LastIndexByte(path, '/') + 1
	return []string{"/" + path, "/." + path, "/open/.." + path, path[:at] + "%" + fmt.Sprintf("%02x", path[at]) +
		path[at+1:], path + "/", path + "?x", path + "%20", path[:at-1] + "%2f" + path[at:]}
}

var forged = [][2]string{{"X-Gatehouse-Device", "root"}, {"x-gatehouse-permissions", "admin"}}

// probesFor returns the requests tried at each port of a configuration.
func (w *world) probesFor(c *config) (all []probe) {
	r := &c.read
	slices.Sort(r.heads)
	r.heads = append(slices.Compact(r.heads), "/any/")
	add := func(p probe) {
		if p.host == "" {
			p.host = "edge.example"
		}
		all = append(all, p)
	}
	for i := range c.protected {
		w.protectedProbes(c, &c.protected[i], r, add)
	}
	for _, path := range append([]string{"/", "/open/x", "/open/bounce", "/img/x", "/missing", "/missing/x"}, r.heads...) {
		add(probe{method: "GET", path: path, headers: forged})
		add(probe{method: "GET", path: path, headers: [][2]string{{"x_gatehouse_device", "root"}}})
		add(probe{method: "GET", path: path, headers: forged, version2: true})
		add(probe{method: "GET", path: path, headers: [][2]string{{"x-user", "root"}}})
	}
	add(probe{method: "GET", path: "/missing/%0d%0aX-Gatehouse-Device:%20root%0d%0aX-Rest:%20"})
	w.innerProbes(r, add)
	for _, host := range c.others {
		add(probe{method: "GET", path: "/shared", host: host})
	}
	return all
}

func (w *world) protectedProbes(c *config, r *resource, read *reader, add func(probe)) {
	methods := r.methods
	if methods == nil {
		methods = []string{"GET", "POST"}
	}
	path := r.samplePath()
	if slices.Contains(methods, "GET") {
		add(probe{method: "GET", path: path, as: "d1"}) // which a cache may keep
		add(probe{method: "GET", path: path, as: "d2"})
	}
	for _, method := range methods {
		for _, two := range []bool{false, true} {
			add(probe{method: method, path: path, version2: two})
			add(probe{method: method, path: path, version2: two, headers: forged})
			add(probe{method: method, path: path, version2: two, host: "static.example"})
			add(probe{method: method, path: path, version2: two, host: "b.example"})
			add(probe{method: method, path: path, version2: two, headers: [][2]string{{"x-internal", "1"}}})
		}
		for _, host := range read.hostSpellings() {
			add(probe{method: method, path: path, host: host})
			add(probe{method: method, path: path, host: host, version2: true})
			add(probe{method: method, path: path, host: host, headers: [][2]string{{"host", "edge.example"}}})
			add(probe{method: method, path: "/public" + path, host: host})
		}
		for _, spelled := range pathSpellings(path) {
			add(probe{method: method, path: spelled})
		}
		for _, client := range read.pathVariants(path) {
			add(probe{method: method, path: client, headers: [][2]string{{"x-cluster", fmt.Sprintf("upstream-%d", c.n)},
				{"x-envoy-original-dst-host", w.service}}})
			if r.admin {
				add(probe{method: method, path: client, as: "d2"})
			}
		}
		add(probe{method: method, path: path, upgrade: "h2c", through: true})
		add(probe{method: method, path: path, upgrade: "CONNECT", through: true})
	}
	add(probe{method: "GET", path: path, upgrade: "websocket"})
	if strings.Contains(c.text, "allow_connect") {
		add(probe{method: "GET", path: path, upgrade: "websocket", version2: true})
	}
}

// innerProbes ask for Gatehouse's and Envoy's internal resources.
func (w *world) innerProbes(r *reader, add func(probe)) {
	for _, head := range append(slices.Clone(r.heads), "/") {
		head = strings.TrimSuffix(head, "/")
		add(probe{method: "POST", path: head + "/v1/fetch", body: privateKey,
			headers: [][2]string{{"x-cluster", "gatehouse-sidecar"}}})
		add(probe{method: "GET", path: head + "/v1/apply"})
		add(probe{method: "GET", path: head + "/metrics"})
		add(probe{method: "GET", path: head + "/server_info",
			headers: [][2]string{{"x-envoy-original-dst-host", w.adminAddress}}})
	}
}

// describeLeak describes what a probe got but must not get, "" for nothing.
func (w *world) describeLeak(c *config, p *probe, ask, answer string) string {
	for _, got := range w.requests.takeRequests(ask) {
		if got.device != "" && p.as != "d1" && got.device != p.as {
			return fmt.Sprintf("the upstream takes it for %s", got.device)
		}
		for i := range c.protected {
			r := &c.protected[i]
			if method := strings.Replace(got.method, "HEAD", "GET", 1); r.covers(method, got.path) &&
				(p.as == "" || r.admin && p.as == "d2") {
				return fmt.Sprintf("the upstream got %s %s", got.method, got.path)
			}
		}
	}
	inner := []string{privateText, deviceText, pushText, adminText}
	if w.EdgeKind() == stack.NginxEdge { // Envoy's statistics may be read
		inner = append(inner, operatorText)
	}
	for _, text := range inner {
		if p.as != "d1" && strings.Contains(answer, text) {
			return fmt.Sprintf("it was answered %q", text)
		}
	}
	if strings.Contains(answer, sharedText) && slices.Contains(c.others, p.host) {
		return fmt.Sprintf("%s was answered %q", p.host, sharedText)
	}
	return ""
}
