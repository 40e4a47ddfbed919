package authority_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/breaker"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/authority"
)

const secret = "a-secret-that-nobody-may-see"

// fixture is a client of a service.
type fixture struct {
	*authority.Client
	t       *testing.T
	metrics *metrics.Metrics
	log     *bytes.Buffer
}

func connect(t *testing.T, url string) fixture {
	t.Helper()
	m, log := metrics.New(), new(bytes.Buffer)
	c, err := authority.New(authority.Settings{URL: url}, m, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	return fixture{c, t, m, log}
}

// ask returns the answer to a question, as text.
func (f fixture) ask(id string) string {
	f.t.Helper()
	return f.askFor(id, await.Deadline)
}

// askFor is ask with the time for the question.
func (f fixture) askFor(id string, most time.Duration) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), most)
	defer cancel()
	a, err := f.Ask(ctx, id, secret, true)
	switch {
	case err != nil && strings.Contains(err.Error()+f.log.String(), secret):
		f.t.Errorf("the error or the log has the secret: %v", err)
		fallthrough
	case err != nil:
		return "error"
	case !a.Allow:
		return "deny"
	}
	return fmt.Sprint("allow ", a.Permissions, " ", a.TTL, " ", a.NotAfter.Unix(), " ",
		slices.Sorted(maps.Keys(a.Labels)))
}

func (f fixture) counts(result string) float64 {
	f.t.Helper()
	return metricstest.Value(f.t, f.metrics, "gatehouse_authority_calls_total", "result", result)
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// TestAnswers: each answer is an allow or a deny by the contract, or an error.
func TestAnswers(t *testing.T) {
	many := func(n int) string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf(`"p%d"`, i)
		}
		return `{"allow": true, "permissions": [` + strings.Join(names, ",") + `]}`
	}
	for _, test := range []struct {
		status     int
		body, want string
		counts     string
	}{
		{200, `{"allow": true}`, "allow [] 0s -62135596800 []", "allow"},
		{200, `{"allow": true, "permissions": ["b", "a", "b"], "ttl": 1.5, "not_after": "2030-01-31T00:00:00Z",
			"labels": {"fleet": "eu"}}`, "allow [a b] 1.5s 1896048000 [fleet]", "allow"},
		{200, `{"allow": false, "permissions": ["a"]}`, "deny", "deny"},
		{200, `{"id": "d", "allow": true}`, "allow [] 0s -62135596800 []", "allow"},
		{200, `{"id": "d", "allow": false}`, "deny", "deny"},
		{200, `{"id": "another", "allow": true}`, "error", "malformed"},
		{200, `{"id": "another", "allow": false}`, "error", "malformed"},
		{401, `whatever`, "deny", "deny"},
		{403, ``, "deny", "deny"},
		{200, many(64), "allow ", "allow"},
		{200, many(65), "error", "malformed"},
		{200, `{"allow": true, "permissions": ["a b"]}`, "error", "malformed"},
		{200, `{"allow": true, "permissions": "a"}`, "error", "malformed"},
		{200, `{"allow": true, "labels": {"Fleet": "eu"}}`, "error", "malformed"},
		{200, `{"allow": true, "ttl": 0}`, "error", "malformed"},
		{200, `{"allow": true, "ttl": -1}`, "error", "malformed"},
		{200, `{"allow": true, "not_after": "tomorrow"}`, "error", "malformed"},
		{200, `{"allow": true, "not_after": "1960-01-01T00:00:00Z"}`, "error", "malformed"},
		{200, `{"allow": true, "notafter": "2030-01-31T00:00:00Z"}`, "error", "malformed"},
		{200, `{"Allow": true}`, "error", "malformed"},
		{200, `{"allow": false, "ALLOW": true}`, "error", "malformed"},
		{200, `{"allow": false, "allow": true}`, "error", "malformed"},
		{200, `{"allow": true, "\u0061llow": true}`, "error", "malformed"},
		{200, `{"allow": true, "ttl": 1, "TTL": 9}`, "error", "malformed"},
		{200, `{"allow": true, "Not_After": "2030-01-31T00:00:00Z"}`, "error", "malformed"},
		{200, `{"allow": true, "permi\u017f\u017fions": ["a"]}`, "error", "malformed"}, // with a long s
		{200, `{"allow": true, "labels": {"fleet": "eu", "fleet": "us"}}`, "error", "malformed"},
		{200, "{\"allow\": true, \"labels\": {\"fleet\": \"e\xff\"}}", "error", "malformed"},
		{200, `{"allow": "true"}`, "error", "malformed"},
		{200, `{"allow": null}`, "error", "malformed"},
		{200, `{}`, "error", "malformed"},
		{200, `null`, "error", "malformed"},
		{200, ``, "error", "malformed"},
		{200, `{"allow": true} {"allow": true}`, "error", "malformed"},
		{200, `{"allow": true`, "error", "malformed"},
		{200, `{"allow": true}` + strings.Repeat(" ", 64<<10), "error", "malformed"},
		{200, "<html>" + secret, "error", "malformed"},
		{201, `{"allow": true}`, "error", "malformed"},
		{302, `{"allow": true}`, "error", "malformed"},
		{404, ``, "error", "malformed"},
		{500, `{"allow": true}`, "error", "error"},
	} {
		f := connect(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(test.status)
			io.WriteString(w, test.body)
		}))
		if got := f.ask("d"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%d %.80s: %s, want %s", test.status, test.body, got, test.want)
		}
		if got := f.counts(test.counts); got != 1 {
			t.Errorf("%d %.80s: not counted as %s", test.status, test.body, test.counts)
		}
	}
}

// TestAnsweredTwice: if a service answers a question twice on a connection of HTTP/1.1, with the id in its answers, the
// second answer doesn't answer the next question.
func TestAnsweredTwice(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conns := make(chan int, 8)
	go func() {
		for n := 1; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- n
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				answer := func(id string) {
					body := fmt.Sprintf(`{"id": %q, "allow": true}`, id)
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
				var first struct{ ID string }
				for range 2 { // the second request gets the second answer to the first
					request, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					text, _ := io.ReadAll(request.Body)
					if first.ID == "" {
						json.Unmarshal(text, &first)
					}
					answer(first.ID)
				}
			}()
		}
	}()
	f := connect(t, "http://"+listener.Addr().String())
	if got := f.ask("good"); !strings.HasPrefix(got, "allow") {
		t.Fatalf("the device of the first question: %s, want allow", got)
	}
	if got := f.ask("bad"); got != "error" {
		t.Errorf("the device of the second question: %s, want an error", got)
	}
	if n := len(conns); n != 1 {
		t.Errorf("%d connections, want 1: the second answer was not read", n)
	}
}

// TestQuestion checks the service's requests, over TCP and over a unix socket.
func TestQuestion(t *testing.T) {
	var got, path atomic.Value
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got.Store(r.Method + " " + r.Header.Get("Content-Type") + " " + string(text))
		path.Store(r.URL.String())
		io.WriteString(w, `{"allow": true}`)
	})
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	want, _ := json.Marshal(map[string]string{"id": "d", "secret": secret})
	for url, asked := range map[string]string{serve(t, handler) + "/check?k=v": "/check?k=v", "unix://" + socket: "/"} {
		if answer := connect(t, url).ask("d"); !strings.HasPrefix(answer, "allow") {
			t.Errorf("%s: %s", url, answer)
		}
		if got.Load() != "POST application/json "+string(want) || path.Load() != asked {
			t.Errorf("the service got %s, at %s", got.Load(), path.Load())
		}
	}
}

// TestFailures: after five failures in a row calls are skipped, but for a try each second; malformed answers about some
// devices skip no calls. A tenth of the calls is retried.
func TestFailures(t *testing.T) {
	var calls atomic.Int64
	var status atomic.Int64
	f := connect(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	status.Store(404)
	for range 20 {
		f.ask("d")
	}
	if calls.Load() != 20 || f.counts("malformed") != 20 {
		t.Fatalf("%d calls, %v malformed", calls.Load(), f.counts("malformed"))
	}
	status.Store(503)
	began := time.Now()
	for i := range 50 {
		f.ask(fmt.Sprint(i))
	}
	// Five questions with a retry each, and a further question for each second that the test took.
	more := int64(time.Since(began) / breaker.Pause)
	if got := calls.Load() - 20; got < 10 || got > 10+2*more {
		t.Errorf("%d calls while the service fails, want 10, and at most %d for tries", got, 2*more)
	}
	if f.counts("skipped") < float64(45-more) || metricstest.Value(t, f.metrics, "gatehouse_authority_broken") != 1 {
		t.Errorf("%v skipped, broken is %v", f.counts("skipped"),
			metricstest.Value(t, f.metrics, "gatehouse_authority_broken"))
	}
	status.Store(401)
	for deadline := time.Now().Add(10 * time.Second); f.ask("d") != "deny"; {
		if time.Now().After(deadline) {
			t.Fatal("the service answers, and is not asked")
		}
	}
	if metricstest.Value(t, f.metrics, "gatehouse_authority_broken") != 0 {
		t.Error("still broken")
	}
}

// TestOneDeviceBreaksNothing: calls about devices that authenticated before go on despite failures of calls about
// strangers, or about a single device; all calls go on after status 429.
func TestOneDeviceBreaksNothing(t *testing.T) {
	f := connect(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(text), "poison"):
			w.WriteHeader(500)
		case strings.Contains(string(text), "busy"):
			w.WriteHeader(429)
		default:
			io.WriteString(w, `{"allow": true}`)
		}
	}))
	for range 20 {
		f.ask("poison")
	}
	for i := range 20 {
		f.ask(fmt.Sprint("busy", i))
	}
	if f.counts("skipped") != 0 {
		t.Error("one device, or a limit of the service's, stopped the calls")
	}
	for i := range 1100 {
		f.Ask(t.Context(), fmt.Sprint("poison", i), secret, false)
	}
	if f.counts("skipped") < 30 {
		t.Errorf("%v skipped: strangers don't stop those of strangers", f.counts("skipped"))
	}
	if got := f.ask("good"); !strings.HasPrefix(got, "allow") {
		t.Errorf("a known device: %s", got)
	}
}

// TestNoPlaceIsNoFailure: a call that got its slot late isn't made.
func TestNoPlaceIsNoFailure(t *testing.T) {
	var calls atomic.Int64
	release := make(chan struct{})
	f := connect(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		<-release
		io.WriteString(w, `{"allow": true}`)
	}))
	var first, late sync.WaitGroup
	for i := range 32 {
		first.Go(func() { f.Ask(t.Context(), fmt.Sprint(i), secret, false) })
	}
	for calls.Load() < 32 {
		time.Sleep(time.Millisecond)
	}
	const most = 2 * time.Second
	var asked sync.WaitGroup
	asked.Add(20)
	for i := range 20 {
		late.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			asked.Done()
			f.Ask(ctx, fmt.Sprint("late", i), secret, false)
		})
	}
	asked.Wait()
	time.Sleep(most * 3 / 4) // more than half of the time
	close(release)
	first.Wait()
	late.Wait()
	if calls.Load() != 32 || f.counts("busy") != 20 {
		t.Errorf("%d calls, %v busy, want 32 and 20", calls.Load(), f.counts("busy"))
	}
	if got := f.ask("d"); !strings.HasPrefix(got, "allow") {
		t.Errorf("then: %s", got)
	}
}

// TestRetriesAreBounded: services that fail now and then get retries for a tenth of the calls.
func TestRetriesAreBounded(t *testing.T) {
	var calls atomic.Int64
	f := connect(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1)%2 == 1 {
			w.WriteHeader(502)
			return
		}
		io.WriteString(w, `{"allow": true}`)
	}))
	errors := 0
	for range 100 {
		if f.ask("d") == "error" {
			errors++
		}
	}
	// ten retries were saved up, and each call earns a tenth
	if got := calls.Load(); got > 121 || errors < 20 {
		t.Errorf("%d calls for 100 questions, %d errors", got, errors)
	}
}

// TestSlow: a service that hangs, before or within its answer, is an error in time, and occupies only its slots:
// strangers leave half of the slots to devices that authenticated before.
func TestSlow(t *testing.T) {
	stop := make(chan struct{})
	var hanging atomic.Int64 // calls about strangers
	f := connect(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if strings.Contains(string(text), `"good"`) {
			io.WriteString(w, `{"allow": true}`)
			return
		}
		if !strings.Contains(string(text), `"d"`) {
			hanging.Add(1)
		}
		io.WriteString(w, `{"allow": `)
		w.(http.Flusher).Flush()
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	if got := f.askFor("d", 500*time.Millisecond); got != "error" || f.counts("timeout") != 1 {
		t.Errorf("%s, %v timeouts", got, f.counts("timeout"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { f.Ask(ctx, fmt.Sprint(i), secret, false) })
	}
	for hanging.Load() < 32 {
		if t.Context().Err() != nil {
			t.Fatal("the calls never came")
		}
		time.Sleep(time.Millisecond)
	}
	if got := f.ask("good"); !strings.HasPrefix(got, "allow") {
		t.Errorf("a known device: %s", got)
	}
	if got := hanging.Load(); got != 32 {
		t.Errorf("%d concurrent calls about strangers, want 32", got)
	}
	cancel()
	wg.Wait()
	close(stop)
	if f.counts("busy") != 68 {
		t.Errorf("%v busy, want 68", f.counts("busy"))
	}
}

// TestNoTextOfTheService: no error and no log has text of the service, but they say which kind of failure happened.
func TestNoTextOfTheService(t *testing.T) {
	for _, test := range []struct{ answer, want string }{
		// Connection: close, since the client tries again, and would meet the end of this connection.
		{"HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: http://[" + secret + "\r\nContent-Length: 0\r\n\r\n",
			"malformed"},
		{"HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n", "malformed"},
		{"HTTP/1.1 " + secret + "\r\n\r\n", "malformed"},
		{secret + "\r\n\r\n", "malformed"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + secret, "closed the connection"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.Copy(io.Discard, r.Body) // an unread body would reset the connection, and lose the answer
				}
				io.WriteString(conn, test.answer)
				conn.Close()
			}
		}()
		f := connect(t, "http://"+listener.Addr().String())
		_, err = f.Ask(t.Context(), "d", secret, true)
		if text := fmt.Sprint(err) + f.log.String(); strings.Contains(text, secret) || !strings.Contains(text, test.want) {
			t.Errorf("%q: %s", test.answer, text)
		}
	}
}

// TestHangingTLS: connections whose handshake hangs don't pile up.
func TestHangingTLS(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	closed := make(chan struct{})
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			io.Copy(io.Discard, conn)
			close(closed)
		}
	}()
	if got := connect(t, "https://"+listener.Addr().String()).askFor("d", 500*time.Millisecond); got != "error" {
		t.Error(got)
	}
	select {
	case <-closed:
	case <-time.After(await.Deadline):
		t.Error("the connection is still open")
	}
}

// TestTLS: the service is verified by the CA certificates, and gets the client certificate.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		certified := len(r.TLS.PeerCertificates) == 1
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		switch {
		case r.Header.Get("Content-Type") == "application/json":
			fmt.Fprintf(w, `{"allow": %v}`, certified)
		case certified:
			says(frame("\n\x00"), "0")(w)
		default:
			says(frame(denied), "0")(w)
		}
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	ca, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	for file, b := range map[string]*pem.Block{
		ca:      {Type: "CERTIFICATE", Bytes: server.Certificate().Raw},
		keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(b), 0o600))
	}
	grpcs := "grpcs" + strings.TrimPrefix(server.URL, "https")
	for _, test := range []struct {
		settings authority.Settings
		want     string
	}{
		{authority.Settings{URL: server.URL}, "error"},
		{authority.Settings{URL: server.URL, CAFile: ca}, "deny"},
		{authority.Settings{URL: server.URL, CAFile: ca, CertFile: ca, KeyFile: keyFile}, "allow"},
		{authority.Settings{URL: grpcs}, "error"},
		{authority.Settings{URL: grpcs, CAFile: ca}, "deny"},
		{authority.Settings{URL: grpcs, CAFile: ca, CertFile: ca, KeyFile: keyFile}, "allow"},
	} {
		c, err := authority.New(test.settings, metrics.New(), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		if got := (fixture{c, t, nil, new(bytes.Buffer)}).ask("d"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v: %s, want %s", test.settings, got, test.want)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, test := range []struct {
		settings authority.Settings
		want     string // "": good
	}{
		{authority.Settings{URL: "http://127.0.0.1:80/a?b=c"}, ""},
		{authority.Settings{URL: "https://auth.example"}, ""},
		{authority.Settings{URL: "unix:///run/auth.sock"}, ""},
		{authority.Settings{URL: "grpc://127.0.0.1:9191"}, ""},
		{authority.Settings{URL: "grpcs://[::1]:9191"}, ""},
		{authority.Settings{URL: "grpc://auth.example"}, "want grpc://host:port"},
		{authority.Settings{URL: "grpcs://auth.example:1/a"}, "want grpcs://host:port"},
		{authority.Settings{URL: "grpc://auth.example:1?a"}, "want grpc://host:port"},
		{authority.Settings{URL: "grpc://a:1", CAFile: "f"}, "or grpcs://"},
		{authority.Settings{URL: "unix://run/auth.sock"}, "unix:///path"},
		{authority.Settings{URL: "auth.example"}, "want http"},
		{authority.Settings{URL: ""}, "want http"},
		{authority.Settings{URL: "ftp://a"}, "want http"},
		{authority.Settings{URL: "http://user:" + secret + "@a"}, "without a user"},
		{authority.Settings{URL: "http://a/" + secret + "\x7f"}, "want http"},
		{authority.Settings{URL: "http://a", CAFile: "f"}, "want https"},
		{authority.Settings{URL: "https://a", CAFile: "/nothing"}, "tls_ca_file"},
		{authority.Settings{URL: "https://a", CertFile: "/nothing"}, "together"},
		{authority.Settings{URL: "https://a", CertFile: "/nothing", KeyFile: "/nothing"}, "tls_cert_file"},
	} {
		got := fmt.Sprint(test.settings.Check())
		if test.want == "" && got != "[]" || !strings.Contains(got, test.want) || strings.Contains(got, secret) {
			t.Errorf("%+v: %s, want %q", test.settings, got, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"allow": true, "permissions": ["a"], "ttl": 5, "not_after": "2030-01-31T00:00:00Z", "labels": {"a": "b"}}`))
	f.Add([]byte(`{"allow": false}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := authority.Parse(text)
		if (err != nil || !a.Allow) && (a.Permissions != nil || a.Labels != nil || a.TTL != 0 || !a.NotAfter.IsZero()) {
			t.Errorf("%+v, %v", a, err)
		}
		if a.Allow && (len(a.Permissions) > 64 || len(a.Labels) > 16 || a.TTL < 0) {
			t.Errorf("%+v", a)
		}
	})
}
