package authority_test

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/verify/authority"
)

// Messages as go-control-plane v1.40.0 encodes them.
const (
	allowed = "\n\x00\"\x97\x01\n\x12\n\vdecision_id\x12\x03\x1a\x017\n\x80\x01\n\tgatehouse\x12s*q\n\x1b\n\x06labels" +
		"\x12" +
		"\x11*\x0f\n\r\n\x05fleet\x12\x04\x1a\x02eu\n#\n\tnot_after\x12\x16\x1a\x142030-01-31T00:00:00Z\n\x1b\n" +
		"\vpermissions\x12\f2\n\n\x03\x1a\x01b\n\x03\x1a\x01a\n\x10\n\x03ttl\x12\t\x11\x00\x00\x00\x00\x00\x00\xf8?" +
		"\x1a\x0f\x12\n\n\b\n\x03x-a\x12\x01b*\x01x"
	denied = "\n\x06\b\a\x12\x02no\x12\x15\n\x03\b\x91\x03\x12\n\n\b\n\x03x-a\x12\x01b\x1a\x02no"
	asked  = "\nU\"S\x12Q\x12\x03GET\x1a\x10\n\vx-device-id\x12\x01d\x1a\x13\n\x0ex-device-token\x12\x01s" +
		"\x1a\x1b\n\rauthorization\x12\nBasic ZDpz\"\x01/*\x03h:1"
)

// check returns a server's URL and the request that it gets. The server answers with a message, if status is 0, or a
// status of gRPC.
func check(t *testing.T, answer func(w http.ResponseWriter)) (url string, got *atomic.Value) {
	t.Helper()
	got = new(atomic.Value)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got.Store(r.Proto + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("TE") + " " +
			string(text))
		w.Header().Set("Content-Type", "application/grpc")
		answer(w)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return "grpc" + strings.TrimPrefix(server.URL, "http"), got
}

func frame(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// says answers a call with a message and a status.
func says(text, status string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		io.WriteString(w, text)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
	}
}

// TestCheckAnswers: each CheckResponse is an allow or a deny, or an error.
func TestCheckAnswers(t *testing.T) {
	const bare = "allow [] 0s -62135596800 []"
	with := func(metadata string) string { return "\n\x00\"" + string(rune(len(metadata))) + metadata }
	for name, test := range map[string]struct {
		answer       func(w http.ResponseWriter)
		want, counts string
	}{
		"all fields":     {says(frame(allowed), "0"), "allow [a b] 1.5s 1896048000 [fleet]", "allow"},
		"status only":    {says(frame("\n\x00"), "0"), bare, "allow"},
		"other metadata": {says(frame(with("\n\x12\n\vdecision_id\x12\x03\x1a\x017")), "0"), bare, "allow"},
		"later fields":   {says(frame("\n\x00\x98\x06\x01"), "0"), bare, "allow"},
		"denied":         {says(frame(denied), "0"), "deny", "deny"},
		"no credential":  {says(frame("\n\x02\b\x10"), "0"), "deny", "deny"},
		"redirected":     {says(frame("\n\x02\b\x10\x12\x05\n\x03\b\xae\x02"), "0"), "deny", "deny"},
		"denied, but ok": {says(frame("\n\x02\b\a\x1a\x00"), "0"), "error", "malformed"},
		"ok, but denied": {says(frame("\n\x00\x12\x00"), "0"), "error", "malformed"},
		"no policy":      {says(frame("\n\x02\b\x05"), "0"), "error", "malformed"},
		"internal":       {says(frame("\n\x02\b\r"), "0"), "error", "error"},
		"negative":       {says(frame("\n\v\b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "0"), "error", "error"},
		"denied, 503":    {says(frame("\n\x02\b\a\x12\x05\n\x03\b\xf7\x03"), "0"), "error", "error"},
		"denied, 429":    {says(frame("\n\x02\b\a\x12\x05\n\x03\b\xad\x03"), "0"), "error", "error"},
		"error_response": {says(frame("\n\x00*\x00"), "0"), "error", "error"},
		"empty":          {says(frame(""), "0"), "error", "malformed"},
		"status of int":  {says(frame("\b\x00"), "0"), "error", "malformed"},
		"code of bytes":  {says(frame("\n\x02\n\x00"), "0"), "error", "malformed"},
		"cut":            {says(frame(allowed[:40]), "0"), "error", "malformed"},
		"shorter":        {says(frame("\n\x00")[:6], "0"), "error", "malformed"},
		"two messages":   {says(frame("\n\x00")+frame("\n\x00"), "0"), "error", "malformed"},
		"compressed":     {says("\x01"+frame("\n\x00")[1:], "0"), "error", "malformed"},
		"long":           {says(frame("\n\x00"+strings.Repeat("\x98\x06\x01", 30000)), "0"), "error", "malformed"},
		"no message":     {says("", "0"), "error", "malformed"},
		"no status":      {says(frame("\n\x00"), ""), "error", "malformed"},
		"odd status":     {says(frame("\n\x00"), "zero"), "error", "malformed"},
		"unimplemented":  {says("", "12"), "error", "malformed"},
		"refused":        {says("", "7"), "error", "error"}, // the sidecar, not the device
		"unavailable":    {says(frame("\n\x00"), "14"), "error", "error"},
		"exhausted":      {says("", "8"), "error", "error"},
		"trailers only":  {func(w http.ResponseWriter) { w.Header().Set("Grpc-Status", "14") }, "error", "error"},
		"no trailers": {func(w http.ResponseWriter) {
			w.Header().Set("Grpc-Status", "0")
			io.WriteString(w, frame("\n\x00"))
		}, "error", "malformed"},
		"two trailers": {func(w http.ResponseWriter) {
			says(frame("\n\x00"), "0")(w)
			w.Header().Add(http.TrailerPrefix+"Grpc-Status", "7")
		}, "error", "malformed"},
		"header and trailer": {func(w http.ResponseWriter) {
			w.Header().Set("Grpc-Status", "7")
			says(frame("\n\x00"), "0")(w)
		}, "error", "malformed"},
		"other type": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			says(frame("\n\x00"), "0")(w)
		}, "error", "malformed"},
		"similar type": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc-web")
			says(frame("\n\x00"), "0")(w)
		}, "error", "malformed"},
		"type with a suffix": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc+proto")
			says(frame("\n\x00"), "0")(w)
		}, bare, "allow"},
		"403 of a proxy": {func(w http.ResponseWriter) { w.WriteHeader(403) }, "error", "malformed"},
		"503 of a proxy": {func(w http.ResponseWriter) { w.WriteHeader(503) }, "error", "error"},
		"metadata isn't": {says(frame(with("\b\x01\n")), "0"), "error", "malformed"},
		"gatehouse is text": {says(frame(with("\n\x10\n\tgatehouse\x12\x03\x1a\x017")), "0"), "error",
			"malformed"},
		"unknown field": {says(frame(strings.Replace(allowed, "not_after", "notafter_", 1)), "0"), "error", "malformed"},
		"allow":         {says(frame(with("\n\x18\n\tgatehouse\x12\v*\t\n\x07\n\x05allow")), "0"), "error", "malformed"},
		"ttl of 0": {says(frame(strings.Replace(allowed, "\xf8?", "\x00\x00", 1)), "0"), "error",
			"malformed"},
		"ttl of NaN": {says(frame(strings.Replace(allowed, "\xf8?", "\xf8\x7f", 1)), "0"), "error", "malformed"},
	} {
		url, _ := check(t, test.answer)
		f := connect(t, url)
		if got := f.ask("d"); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		if got := f.counts(test.counts); got != 1 {
			t.Errorf("%s: not counted as %s", name, test.counts)
		}
	}
}

// TestCheckQuestion checks the octets that the service gets.
func TestCheckQuestion(t *testing.T) {
	url, got := check(t, says(frame("\n\x00"), "0"))
	f := connect(t, url)
	if _, err := f.Ask(t.Context(), "d", "s", true); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(url, "grpc://")
	longer := len(host) - len("h:1")
	want := strings.NewReplacer("\x03h:1", string(rune(len(host)))+host, "\nU\"S\x12Q",
		"\n"+string(rune('U'+longer))+"\""+string(rune('S'+longer))+"\x12"+string(rune('Q'+longer))).Replace(asked)
	want = "HTTP/2.0 /envoy.service.auth.v3.Authorization/Check application/grpc trailers " + frame(want)
	if got.Load() != want {
		t.Errorf("the service got\n%q, want\n%q", got.Load(), want)
	}
	if _, err := f.Ask(t.Context(), "a:b", "s", true); err != nil || strings.Contains(got.Load().(string), "Basic") {
		t.Errorf("an id with a colon in Basic: %v, %q", err, got.Load())
	}
}

// TestCheckHangs: a service that doesn't answer, or not to the end, is a timeout; a service of HTTP/1 is an error.
func TestCheckHangs(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for _, sent := range []string{"", frame("\n\x00")} {
		url, _ := check(t, func(w http.ResponseWriter) {
			io.WriteString(w, sent)
			w.(http.Flusher).Flush()
			<-release
		})
		f := connect(t, url)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := f.Ask(ctx, "d", secret, true)
		cancel()
		if err == nil || f.counts("timeout") != 1 {
			t.Errorf("after %q: %v", sent, err)
		}
	}
	f := connect(t, "grpc"+strings.TrimPrefix(serve(t, func(http.ResponseWriter, *http.Request) {}), "http"))
	if got := f.ask("d"); got != "error" || f.counts("error") != 1 {
		t.Errorf("a server of HTTP/1: %s", got)
	}
}

func FuzzParseCheck(f *testing.F) {
	f.Add([]byte(allowed))
	f.Add([]byte(denied))
	f.Fuzz(func(t *testing.T, message []byte) {
		a, err := authority.ParseCheck(message)
		if (err != nil || !a.Allow) && (a.Permissions != nil || a.Labels != nil || a.TTL != 0 || !a.NotAfter.IsZero()) {
			t.Errorf("%+v, %v", a, err)
		}
		if a.Allow && (len(a.Permissions) > 64 || len(a.Labels) > 16 || a.TTL < 0) {
			t.Errorf("%+v", a)
		}
	})
}
