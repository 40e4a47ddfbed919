package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// usualHeaders are common request headers, as Envoy passes them.
const usualHeaders = `:authority :path :method :scheme :protocol accept accept-charset accept-encoding accept-language authorization
	cache-control content-length content-type content-encoding cookie expect forwarded if-match if-modified-since if-none-match
	if-range if-unmodified-since origin pragma priority purpose range referer sec-ch-ua sec-ch-ua-mobile sec-ch-ua-platform
	sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user sec-websocket-key save-data transfer-encoding
	upgrade-insecure-requests user-agent x-real-ip x-forwarded-for x-forwarded-proto x-forwarded-host x-forwarded-port
	x-forwarded-client-cert x-forwarded-prefix x-request-id x-correlation-id x-envoy-external-address
	x-envoy-expected-rq-timeout-ms x-envoy-attempt-count x-envoy-internal x-envoy-peer-metadata x-envoy-peer-metadata-id
	x-requested-with x-device-id x-device-token x-api-key x-csrf-token x-b3-traceid x-b3-spanid x-b3-sampled traceparent
	tracestate baggage x-amzn-trace-id x-cloud-trace-context cf-connecting-ip true-client-ip grpc-timeout`

// TestMarks: one bit of each name tells whether a header may have to be removed. For nearly all requests without such a
// header the bits must tell that.
func TestMarks(t *testing.T) {
	e := newEdge(t, `{}`)
	for name := range strings.FieldsSeq(usualHeaders) {
		if headermap.NameBit(name)&(e.removed.bits|connectionBit) != 0 {
			t.Errorf("%s: has the mark of a header that is removed", name)
		}
		for _, short := range []string{"te", "via", "host", "dnt"} {
			f, ok := headermap.ParseFields(headermap.Append(nil, [][2]string{{":path", "/"}, {short, "trailers"}, {name, "x"}}))
			if !ok || f.NameBits&e.removed.bits != 0 {
				t.Errorf("%s, %s: have the mark of a header that is removed", short, name)
			}
		}
	}
	for _, name := range slices.Concat(identityHeaders, overrideHeaders) {
		spellings := []string{name}
		for _, mark := range "!#$%&'*+.^_`|~" { // of a token (RFC 9110, section 5.6.2)
			spellings = append(spellings, strings.ReplaceAll(name, "-", string(mark)),
				strings.Replace(name, "-", string(mark), 1))
		}
		for _, spelled := range spellings {
			for _, value := range []string{"", "x"} { // the last field is where a bit could be read beyond the map
				f, ok := headermap.ParseFields(headermap.Append(nil, [][2]string{{":path", "/"}, {spelled, value}}))
				if !ok || f.NameBits&e.removed.bits == 0 || !e.removed.isRemoved(spelled) {
					t.Errorf("%s: isn't found", spelled)
				}
			}
		}
	}
}

// TestConnectionOptions: no option names a header with an identity.
func TestConnectionOptions(t *testing.T) {
	for _, tt := range []struct {
		connection, kept string
		changed          bool
	}{
		{"", "", false},
		{"Upgrade", "Upgrade", false},
		{"keep-alive, TE, close", "keep-alive, TE, close", false},
		{"x-gatehouse-device", "", true},
		{"Upgrade, x-gatehouse-device", "Upgrade", true},
		{"X-Gatehouse-Permissions,\tUpgrade ,x-gatehouse-device\t,keep-alive", "Upgrade, keep-alive", true},
		{", ,upgrade,,x_gatehouse_device, x-auth-device", "upgrade", true},
	} {
		if kept, changed := ConnectionOptions(tt.connection); changed != tt.changed || kept != tt.kept {
			t.Errorf("%q: got %q, %v, want %q, %v", tt.connection, kept, changed, tt.kept, tt.changed)
		}
	}
}

func newEdge(t testing.TB, config string) *Engine {
	t.Helper()
	return NewEngine(mustParse(t, config))
}

func TestRemoved(t *testing.T) {
	lines := []string{"POST /any", "x-http-method-override: DELETE", "x_http_method: DELETE", "x-original-url: /admin",
		"x-forwarded-prefix: /a", "x-original-ur: /", "x-gatehouse_device: me"}
	for _, tt := range []struct {
		config string
		want   []string
	}{
		{`{}`, []string{"x-http-method-override", "x_http_method", "x-original-url", "x-gatehouse_device"}},
		{`{"strip_override_headers": false}`, []string{"x-gatehouse_device"}},
	} {
		r := read(newEdge(t, tt.config), lines...)
		if !slices.Equal(r.Removed, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.config, r.Removed, tt.want)
		}
	}
}

func TestSecretHeaders(t *testing.T) {
	const headers, basic = `{"credentials": {"id_header": "x-id", "secret_header": "x-device-token"`,
		`{"credentials": {"basic": true`
	const keys = headers + `, "api_key_header": "x-api-key", "bearer": true}}`
	tests := []struct {
		name, config string
		lines        []string
		want         []string
	}{
		{"the secret", headers + `}}`, []string{"x-id: dev", "x-device-token: s"}, []string{"x-device-token"}},
		{"forwarded", headers + `, "forward": true}}`, []string{"x-device-token: s"}, nil},
		{"none, of a token", headers + `}}`, []string{"authorization: Bearer e"}, nil},
		{"two lines", headers + `}}`, []string{"x-device-token: s", "x-device-token: s"}, []string{"x-device-token"}},
		{"other spellings", headers + `}}`, []string{"x_device_token: s", "x-device-token: s", "x.device-token: s",
			"x-device-tokem: s"},
			[]string{"x-device-token", "x_device_token", "x.device-token"}},
		{"another spelling beside a token", headers + `}}`, []string{"x_device_token: s"}, []string{"x_device_token"}},
		{"other lines twice", headers + `}}`, []string{"if-none-match: a", "if-none-match: b"}, nil},
		{"basic", basic + `}}`, []string{"authorization: Basic ZGV2OnM=", "x-device-token: s"}, []string{"authorization"}},
		{"an API key", keys, []string{"x-api-key: k", "x_api-key: k", "x-id: dev"}, []string{"x-api-key", "x_api-key"}},
		{"a bearer", keys, []string{"authorization: Bearer gh_k"}, []string{"authorization"}},
		{"another's bearer beside a key", keys, []string{"authorization: Bearer eyJ", "x-api-key: k"}, []string{"x-api-key"}},
		{"a token that is forwarded", keys, []string{"authorization: Bearer eyJ"}, nil},
		{"an API key, forwarded", headers + `, "api_key_header": "k", "forward": true}}`, []string{"k: gh_k"}, nil},
		{"basic, forwarded", basic + `, "forward": true}}`, []string{"authorization: Basic ZGV2OnM="}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEdge(t, tt.config)
			r := read(e, append([]string{"GET /any"}, tt.lines...)...)
			if got := r.SecretHeaders(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
