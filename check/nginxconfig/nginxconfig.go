// Package nginxconfig analyses an nginx.conf offline: whether all that Gatehouse protects is judged by its plugin, and
// whether the plugin has what it needs. It knows what bypass_test.go shows of a real nginx.
package nginxconfig

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// analysis is one under way.
type analysis struct {
	file         string // nginx.conf
	report       findings.Report
	reader       *reader
	http         *scope
	servers      []*scope            // of http and of the stream blocks
	ways         map[way][]string    // where passes lead, as far as that was asked
	unjudgedWays map[sender][]string // of unjudgedTo, likewise
	rules        *rules              // nil if they can't be read
	upstreams    map[string]bool     // what the plugin protects, by name and address
	inner        map[string]string   // addresses that only Gatehouse, or this machine, may reach, and what they are
	exposed      map[*scope]bool     // local servers that others lead to
	machineOnly  bool                // other machines don't reach the servers that the plugin judges
	seen         map[place]bool
	parsed       map[*directive]parsedLua
	variables    map[*scope]variables // of servers of http, as far as that was asked
	judges       map[*scope][]judge   // of each server
}

// place is a directive with a finding: several locations may inherit it.
type place struct {
	d    *directive
	code string
}

var nginxFile = regexp.MustCompile(`(?m)^\s*(events|http|server)\s*\{`)

// Is reports whether text is nginx's: a line of it begins one of the blocks of every nginx.conf.
func Is(text []byte) bool { return nginxFile.Match(text) }

func newAnalysis(file string) *analysis {
	return &analysis{file: file, upstreams: map[string]bool{}, seen: map[place]bool{}, ways: map[way][]string{},
		unjudgedWays: map[sender][]string{}, exposed: map[*scope]bool{}, parsed: map[*directive]parsedLua{},
		variables: map[*scope]variables{}}
}

// Analyze reads an nginx.conf, of which text is the content, with the files that it includes; or the output of
// nginx -T. rules are the plugin's, rendered or not, of a file of this name; nil: those that nginx.conf names.
func Analyze(file string, text []byte, rulesFile string, rules []byte) findings.Report {
	a := newAnalysis(file)
	var tree []*directive
	tree, a.reader = load(file, text)
	for _, d := range tree {
		if d.name == "http" {
			a.http = newScope(d, nil)
		}
	}
	if len(a.reader.wrong) == 0 && a.http == nil {
		a.reader.wrong = []string{"has no http block: give nginx.conf itself, which includes the others"}
	}
	for _, why := range a.reader.wrong {
		a.add(&unreadable, nil, "", "%s", why)
	}
	if len(a.reader.wrong) > 0 {
		return a.report // what is missing can't be told
	}
	found := false
	a.machineOnly = true
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			if a.judged(s) {
				found = true
				a.machineOnly = a.machineOnly && server.local()
			}
		})
	}
	if !found {
		a.add(&noPlugin, nil, "", "no server runs access_by_lua of Gatehouse: no request is judged")
		return a.report // of a proxy that isn't Gatehouse's
	}
	a.findServers(tree)
	a.setup(rulesFile, rules)
	a.findJudges()
	a.push()
	a.protect()
	a.expose()
	a.streams()
	for _, server := range a.http.inner {
		server.each(a.check)
	}
	a.hosts()
	a.report.Sort()
	return a.report
}

// add reports a finding in a scope, nil for none; at says where in it.
func (a *analysis) add(k *findings.Kind, s *scope, at, format string, args ...any) {
	var d *directive
	if s != nil {
		d = s.directive
	}
	a.addIn(k, s, d, at, format, args...)
}

// addAt reports a finding about a directive that applies in a scope, once.
func (a *analysis) addAt(k *findings.Kind, s *scope, d *directive, format string, args ...any) {
	if at := (place{d, k.Code}); !a.seen[at] {
		a.seen[at] = true
		a.addIn(k, s, d, d.name, format, args...)
	}
}

// addIn reports a finding in a scope, nil for none; at says where in it, on the line of a directive.
func (a *analysis) addIn(k *findings.Kind, s *scope, d *directive, at, format string, args ...any) {
	p := findings.Place{Path: at}
	if server := s.server(); server != nil {
		p.Server = server.title()
		if path := s.path(); path != "" {
			p.Path = path + ": " + at
		}
	}
	if d != nil {
		p.Line = d.line
		if d.file != a.file {
			p.File = d.file
		}
	}
	a.report.Add(k, p, format, args...)
}

var (
	callInit   = regexp.MustCompile(`\binit\s*[({]`)
	callStart  = regexp.MustCompile(`\bstart\s*\(`)
	callAccess = regexp.MustCompile(`\baccess\s*\(`)
	callApply  = regexp.MustCompile(`\bapply\s*\(`)
	callDrain  = regexp.MustCompile(`\bdrain\s*\(`)
	ownSocket  = regexp.MustCompile(`\b(socket|push)\s*=\s*["'](unix:[^"']*)["']`)
	memoryMiB  = regexp.MustCompile(`\bmemory_mib\s*=\s*(\d+)`)
	rulesFile  = regexp.MustCompile(`\brules\s*=\s*["']([^"']*)["']`)
)

const (
	edgeModule = "gatehouse.edge"
	pushModule = "gatehouse.push"
)

// setup checks what the plugin needs in the http block, and reads the rules.
func (a *analysis) setup(file string, rules []byte) {
	code, calls, known := a.calls(a.http, "init_by_lua", edgeModule, callInit)
	if !calls && known {
		a.add(&noInit, a.http,
			"http", "no init_by_lua calls edge.init: nginx doesn't read the rules, and answers every request 503")
	}
	if calls || !known || rules != nil {
		named := ""
		if m := rulesFile.FindStringSubmatch(code); m != nil {
			named = m[1]
		}
		a.readRules(file, rules, named)
	}
	a.inner = map[string]string{}
	for _, m := range ownSocket.FindAllStringSubmatch(code, -1) {
		a.inner[m[2]] = map[string]string{"socket": sidecarAPI, "push": pushSocket}[m[1]]
	}
	if _, calls, known := a.calls(a.http, "init_worker_by_lua", edgeModule, callStart); !calls && known {
		a.add(&noStart, a.http,
			"http", "no init_worker_by_lua calls edge.start: workers don't load the library, and answer every request 503")
	}
	a.memory(code)
	a.http.each(func(s *scope) {
		for _, d := range s.own("lua_code_cache") {
			if d.arg(0) == "off" {
				a.addAt(&noCodeCache, s, d, "is off: each request loads the plugin again, without its library")
			}
		}
	})
}

// defaultBudgetMiB is the default of the sidecar's --memory.bytes, MiB.
const defaultBudgetMiB = 256

// memory checks the shared memory that init names.
func (a *analysis) memory(init string) {
	if !slices.ContainsFunc(a.http.own("lua_shared_dict"), func(d *directive) bool { return d.arg(0) == "gatehouse" }) {
		a.add(&noDict, a.http, "http", "lua_shared_dict gatehouse is missing: nginx doesn't start")
	}
	if m := memoryMiB.FindStringSubmatch(init); m != nil {
		if mib, err := strconv.Atoi(m[1]); err == nil && mib < defaultBudgetMiB {
			a.add(&smallMemory, nil, "init_by_lua", "memory_mib is %d, and the default of the sidecar's --memory.bytes %d "+
				"MiB: nginx may refuse its pushes", mib, defaultBudgetMiB)
		}
	}
}

// size returns a size as nginx writes it, in bytes; 0 if it is none.
func size(text string) int64 {
	unit := int64(1)
	if text != "" {
		switch text[len(text)-1] | 0x20 {
		case 'k':
			unit = 1 << 10
		case 'm':
			unit = 1 << 20
		case 'g':
			unit = 1 << 30
		}
	}
	n, err := strconv.ParseInt(strings.TrimRight(text, "kKmMgG"), 10, 64)
	if err != nil {
		return 0
	}
	return n * unit
}

// push checks the listener that the sidecar pushes to, and the one for operators.
func (a *analysis) push() {
	found := false
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			if s.own("content_by_lua", "content_by_lua_block", "content_by_lua_file") == nil {
				return
			}
			if _, drains, _ := a.calls(s, "content_by_lua", edgeModule, callDrain); drains {
				for _, d := range server.own("listen") {
					a.inner[address(d.arg(0))] = "the server for operators, by which nginx is drained"
				}
			}
			if _, drains, _ := a.calls(s, "content_by_lua", edgeModule, callDrain); drains && !server.local() &&
				!s.closed() {
				a.add(&openAdmin, s, "content_by_lua",
					"calls edge.drain, and other machines reach it: whoever does can drain nginx")
			}
			_, applies, known := a.calls(s, "content_by_lua", pushModule, callApply)
			found = found || applies || !known
			if applies {
				a.pushListener(server, s)
			}
		})
	}
	if !found {
		a.add(&noPush, a.http, "http", "has no push listener: the sidecar can't bring anything to the edge, so every "+
			"request goes upstream or is answered 503")
	}
}

// pushListener checks a server whose scope s takes pushes.
func (a *analysis) pushListener(server, s *scope) {
	listens := server.own("listen")
	for _, d := range listens {
		if socket, found := strings.CutPrefix(d.arg(0), "unix:"); !found {
			a.addAt(&openPush, server, d, "%s is no unix socket: anyone who can reach it can write the cache and the verdicts",
				d.arg(0))
		} else if anyoneEnters(filepath.Dir(socket)) {
			a.addAt(&openDir, server, d, "all users may enter %s, and nginx lets all users write to its sockets: they can "+
				"write the cache and the verdicts", filepath.Dir(socket))
		}
	}
	if listens == nil {
		a.add(&openPush, server, "listen", "is missing, so nginx listens on port 80: anyone who can reach it can write the "+
			"cache and the verdicts")
	}
	if limit := s.value("client_max_body_size"); limit == "" || size(limit) < limits.MaxBatch && size(limit) != 0 {
		a.add(&smallPush, s, "client_max_body_size", "is less than %d, which a batch may have: larger ones are answered 413",
			limits.MaxBatch)
	}
}

// anyoneEnters reports whether each user of this machine may enter dir. One that isn't here is another machine's.
func anyoneEnters(dir string) bool {
	for {
		info, err := os.Stat(dir)
		switch {
		case err != nil || !info.IsDir() || info.Mode()&0o001 == 0:
			return false
		case filepath.Dir(dir) == dir:
			return true
		}
		dir = filepath.Dir(dir)
	}
}
