package nginxconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/nginx"
)

const pass = "location / { proxy_pass http://service; }"

const (
	denied = "default: deny\nrules: []\n"
	shop   = "virtual_hosts: {shop: {domains: [shop.example, '*.shop.example'], rules: [{match: {prefix: /me/}, auth: " +
		"{}}]}}\n"
	open    = "virtual_hosts: {open: {domains: [open.example]}}\nrules: [{match: {prefix: /me/}, auth: {}}]\n"
	forShop = "server_name shop.example .shop.example;"
)

// hostCases are configurations with virtual hosts in the rules: additions to nginx.conf's server, further servers of
// the address, and additions to http. e2e/bypass proves the open ones.
var hostCases = []struct {
	name, rules          string
	own, servers, others string
	want                 []string
	at                   string // part of the first finding's place and message
}{
	{"one server", shop, "", "", "", []string{weakerHost.Code},
		`proxy_pass: http://service: leads to an upstream that virtual_hosts.shop protects for other hosts, but ` +
			`here the top level of the rules judges the host "", and asks less for GET /me/`},
	{"one server, others are refused", denied + shop, "", "", "", nil, ""},
	{"one server, others ask the same", shop + "rules: [{match: {prefix: /me/}, auth: {}}]\n", "", "", "", nil, ""},
	{"a server and an upstream for each", shop, forShop, "server { LISTEN default_server; PLUGIN PASS/other; } }", "",
		nil, ""},
	{"a server and an upstream for each, others are refused", denied + shop, forShop,
		"server { LISTEN default_server; PLUGIN PASS/other; } }", "", nil, ""},
	{"the first server is the default", shop, forShop, "server { LISTEN; PLUGIN PASS/other; } }", "",
		[]string{weakerHost.Code}, `judges the host ""`},
	{"a name without a virtual host", shop, strings.Replace(forShop, ".shop", "www.example .shop", 1),
		"server { LISTEN default_server; PLUGIN PASS/other; } }", "", []string{weakerHost.Code},
		`judges the host "www.example"`},
	{"a name in capitals", shop, strings.ToUpper(forShop[:11]) + forShop[11:], "", "", []string{weakerHost.Code}, ""},
	{"names by an expression", shop, `server_name "~^(.+\.)?shop\.example$";`,
		"server { LISTEN default_server; PLUGIN PASS/other; } }", "", nil, ""},
	{"names by an expression that has more", shop, `server_name "~^(shop|www[0-9])\.example$" ~^web\d\.example$;`,
		"server { LISTEN default_server; PLUGIN PASS/other; } }", "", []string{weakerHost.Code, weakerHost.Code},
		`judges the host "web1.example"`},
	{"a name by an expression that isn't Go's", shop, `server_name "~^(?!shop)[.]example$" .shop.example;`,
		"server { LISTEN default_server; PLUGIN PASS/other; } }", "", []string{unclear.Code},
		"server_name: \"^(?!shop)[.]example$\": can't be read here"},
	{"another address of the same upstream", shop, forShop, "server { LISTEN default_server; PLUGIN PASS/other; } }",
		"server { listen 81; PLUGIN PASS/service; } }", []string{weakerHost.Code}, ""},
	{"another path of the same upstream", open, "server_name open.example;",
		"server { LISTEN default_server; PLUGIN PASS/other; } location /me/ { proxy_pass http://other; } }", "", nil, ""},
	{"an open host", open, "", "server { LISTEN; server_name open.example; PLUGIN PASS/other; } }", "", nil, ""},
	{"an open host of the same upstream", open, "", "server { LISTEN; server_name open.example; PLUGIN PASS/service; } }",
		"", []string{weakerHost.Code}, "server open.example: location /"},
	{"an open host of another path", open, "",
		"server { LISTEN; server_name open.example; PLUGIN location /you/ { proxy_pass http://service; } }", "", nil, ""},
	{"an open host, rewriting", open, "", "server { LISTEN; server_name open.example; PLUGIN location /you/ { " +
		"proxy_pass http://service/me/; } }", "", []string{weakerHost.Code}, "server open.example: location /you/"},
	{"an open host, rewriting what it captures", open, "", "server { LISTEN; server_name open.example; PLUGIN location " +
		"/you/ { rewrite ^/y(o)u/(?<rest>.*)$ /me/$rest break; proxy_pass http://service; } }", "",
		[]string{rewriteIn.Code}, ""},
	{"an open host for this machine", open, "",
		"server { LISTEN; server_name open.example; PLUGIN PASS/other; } }", "server { listen 127.0.0.1:81; server_name " +
			"open.example; PLUGIN PASS/service; } }", nil, ""},
	{"an upstream by a map of the host", open, "", "server { LISTEN; server_name open.example; PLUGIN location / { " +
		"proxy_pass http://$by_host; } }", "map $http_host $by_host { open.example other; default service; }",
		[]string{weakerHost.Code}, ""},
}

func TestHosted(t *testing.T) {
	const listen = "listen 127.0.0.1:8080"
	for _, c := range hostCases {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "rules")
			require.NoError(t, os.WriteFile(file, []byte("credentials: {basic: true}\n"+c.rules), 0o600))
			more := strings.NewReplacer("LISTEN", listen[:7]+"8080", "PLUGIN", "include /usr/share/gatehouse/nginx/server.conf;",
				"PASS/", "location / { proxy_pass http://").Replace(c.others + c.servers)
			report := analyzeShipped(t, file, listen, "listen 8080", inServer, "    "+c.own+"\n"+inServer, anyServer,
				"upstream other { server 192.0.2.1; }\n"+more+"\n"+anyServer)
			wantCodes(t, report, c.want)
			if len(report.Findings) > 0 &&
				!strings.Contains(report.Findings[0].Place.Text()+": "+report.Findings[0].Message, c.at) {
				t.Errorf("found %+v, want %q", report.Findings[0], c.at)
			}
		})
	}
}

// TestDot: a real nginx ignores a dot at the host's end: server and rules are those of the host.
func TestDot(t *testing.T) {
	const rules = `credentials: {id_header: x-device-id, secret_header: x-device-token}
rules: [{match: {path: /v1/secret}, auth: {}}]
virtual_hosts: {shop: {domains: [shop.example], rules: [{match: {path: /v1/secret}, auth: {}}, {match: {prefix: /me/}, auth: {}}]}}
`
	const servers = include + "server_name shop.example;\n" + pass + "}\nserver { listen unix:DIR/1.sock " +
		"default_server;\n" +
		include + "location / { return 404; }"
	e := newEdge(t, edgeConfig, []string{plain, servers})
	rendered, _, err := nginx.Render([]byte(rules))
	require.NoError(t, err)
	e.write("rules.json", string(rendered))
	e.ready()
	for host, want := range map[string]string{"shop.example": "401", "SHOP.example:80": "401",
		"shop.example.": "401", "shop.example.:80": "401", "other.example": "404"} {
		if got := e.ask(1, "GET", "/me/x", "Host: "+host); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %s", host, got, want)
		}
	}
	wantCodes(t, e.analyze(), []string{weakerHost.Code})
}

func TestListens(t *testing.T) {
	for listen, want := range map[string]string{"80": "*:80", "*:81": "*:81", "0.0.0.0:81": "*:81", "0.0.0.0": "*:80",
		"127.0.0.1:81": "127.0.0.1:81", "127.0.0.1": "127.0.0.1:80", "[::]:81": "[::]:81", "[::1]": "[::1]:80",
		"unix:/a.sock": "unix:/a.sock", "a:81": "a:81"} {
		server := newScope(&directive{name: "server", block: []*directive{{name: "listen", args: []string{listen}}}}, nil)
		if got := listenAddresses(server); len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %q, want %s", listen, got, want)
		}
	}
	if got := listenAddresses(newScope(&directive{name: "server"}, nil)); len(got) != 1 || got[0] != "*:80" {
		t.Errorf("without listen got %q", got)
	}
}
