// Package nginxconfig analyses an nginx.conf offline: whether Gatehouse's plugin judges all requests for protected
// upstreams, and whether the plugin has the settings that the plugin needs. bypass_test.go checks this model against a
// real nginx.
package nginxconfig

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
)

// analysis holds the state of one Analyze call.
type analysis struct {
	file             string // nginx.conf
	report           findings.Report
	reader           *reader
	http             *scope
	model            topology.Model
	rules            *policy.Config    // unknownRules if the rules can't be read
	privateAddresses map[string]string // addresses that clients must not reach, with descriptions
	reported         map[findingKey]bool
	variables        map[*scope]variables            // variables by server of http, computed on demand
	serverRules      map[*scope][]topology.HostRules // rules by server
	peerRules        map[*scope][]topology.HostRules // results of peerHostRules, by server
}

// findingKey identifies a finding of a directive: several locations may inherit the directive.
type findingKey struct {
	d    *directive
	code string
}

var nginxFile = regexp.MustCompile(`(?m)^\s*(events|http|server)\s*\{`)

// Is reports whether text is nginx's: some line begins a block of every nginx.conf.
func Is(text []byte) bool { return nginxFile.Match(text) }

// newAnalysis reads the nginx.conf file, with content text, and the included files.
func newAnalysis(file string, text []byte) (a *analysis, tree []*directive) {
	rules, err := nginx.Parse([]byte(unknownRules))
	if err != nil {
		panic(err)
	}
	a = &analysis{file: file, rules: rules, reported: map[findingKey]bool{},
		peerRules: map[*scope][]topology.HostRules{}, variables: map[*scope]variables{}}
	tree, a.reader = loadFiles(file, text)
	for _, d := range tree {
		if d.name == "http" {
			a.http = newScope(d, nil)
		}
	}
	if len(a.reader.problems) == 0 && a.http == nil {
		a.reader.problems = []string{"has no http block: give nginx.conf itself, which includes the others"}
	}
	return a, tree
}

// Analyze reads the nginx.conf file, with content text, and the included files; or the output of nginx -T. rules are
// the content of rulesFile, rendered or not; nil stands for the rules that nginx.conf names.
func Analyze(file string, text []byte, rulesFile string, rules []byte) findings.Report {
	a, tree := newAnalysis(file, text)
	for _, why := range a.reader.problems {
		a.add(&unreadable, nil, "", "%s", why)
	}
	if len(a.reader.problems) > 0 {
		return a.report // findings would be guesses
	}
	found := false
	a.http.each(func(s *scope) { found = found || s != a.http && a.isJudged(s) })
	if !found {
		a.add(&noPlugin, nil, "", "no server runs access_by_lua of Gatehouse: no request is judged")
		return a.report // the proxy is not Gatehouse's
	}
	a.checkSetup(rulesFile, rules)
	a.findServerRules()
	a.checkPush()
	a.addServers(tree)
	a.model.Check()
	for _, server := range a.http.inner {
		server.each(a.checkScope)
	}
	a.report.Sort()
	return a.report
}

// add reports a finding in a scope, nil for none; at is the position within the scope.
func (a *analysis) add(k *findings.Kind, s *scope, at, format string, args ...any) {
	var d *directive
	if s != nil {
		d = s.directive
	}
	a.addAtLine(k, s, d, at, format, args...)
}

// addOnce reports a finding about an inherited or own directive of a scope, once per directive.
func (a *analysis) addOnce(k *findings.Kind, s *scope, d *directive, format string, args ...any) {
	if at := (findingKey{d, k.Code}); !a.reported[at] {
		a.reported[at] = true
		a.addAtLine(k, s, d, d.name, format, args...)
	}
}

// addAtLine reports a finding in a scope, nil for none, with the line of d; at is the position within the scope.
func (a *analysis) addAtLine(k *findings.Kind, s *scope, d *directive, at, format string, args ...any) {
	p := findings.Place{Path: at}
	if server := s.server(); server != nil {
		p.Server = server.serverTitle()
		if path := s.scopePath(); path != "" {
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

// checkSetup checks the plugin's directives in the http block, and reads the rules.
func (a *analysis) checkSetup(file string, rules []byte) {
	code, calls, known := a.reader.findCall(a.http, "init_by_lua", edgeModule, callInit)
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
	a.privateAddresses = map[string]string{}
	for _, m := range ownSocket.FindAllStringSubmatch(code, -1) {
		a.privateAddresses[m[2]] = map[string]string{"socket": topology.SidecarAPI, "push": topology.PushListener}[m[1]]
	}
	if _, calls, known := a.reader.findCall(a.http, "init_worker_by_lua", edgeModule, callStart); !calls && known {
		a.add(&noStart, a.http,
			"http", "no init_worker_by_lua calls edge.start: workers don't load the library, and answer every request 503")
	}
	a.checkMemory(code)
	a.http.each(func(s *scope) {
		for _, d := range s.own("lua_code_cache") {
			if d.arg(0) == "off" {
				a.addOnce(&noCodeCache, s, d, "is off: each request loads the plugin again, without its library")
			}
		}
	})
}

// defaultBudgetMiB is the default of the sidecar's --memory.bytes, MiB.
const defaultBudgetMiB = 256

// checkMemory checks the shared memory that edge.init names.
func (a *analysis) checkMemory(init string) {
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

// parseSize returns a size in nginx's notation as bytes; 0 for an invalid size.
func parseSize(text string) int64 {
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

// checkPush checks the push listener and the operators' listener.
func (a *analysis) checkPush() {
	found := false
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			if s.own("content_by_lua", "content_by_lua_block", "content_by_lua_file") == nil {
				return
			}
			if _, drains, _ := a.reader.findCall(s, "content_by_lua", edgeModule, callDrain); drains {
				for _, d := range server.own("listen") {
					a.privateAddresses[normalizeAddress(d.arg(0))] = "the server for operators, by which nginx is drained"
				}
			}
			if _, drains, _ := a.reader.findCall(s, "content_by_lua", edgeModule, callDrain); drains && !server.isLocal() &&
				!s.isRestricted() {
				a.add(&openAdmin, s, "content_by_lua",
					"calls edge.drain, and other machines reach it: whoever does can drain nginx")
			}
			_, applies, known := a.reader.findCall(s, "content_by_lua", pushModule, callApply)
			found = found || applies || !known
			if applies {
				a.checkPushListener(server, s)
			}
		})
	}
	if !found {
		a.add(&noPush, a.http, "http", topology.NoPushText)
	}
}

// checkPushListener checks a server whose scope s takes pushes.
func (a *analysis) checkPushListener(server, s *scope) {
	listens := server.own("listen")
	for _, d := range listens {
		if socket, found := strings.CutPrefix(d.arg(0), "unix:"); !found {
			a.addOnce(&openPush, server, d, "%s "+topology.OpenPushText, d.arg(0))
		} else if anyoneCanEnter(filepath.Dir(socket)) {
			a.addOnce(&openDir, server, d, "all users may enter %s, and nginx lets all users write to its sockets: they can "+
				"write the cache and the verdicts", filepath.Dir(socket))
		}
	}
	if listens == nil {
		a.add(&openPush, server, "listen", "is missing, so nginx listens on port 80: anyone who can reach it can write the "+
			"cache and the verdicts")
	}
	if limit := s.value("client_max_body_size"); limit == "" || parseSize(limit) < limits.MaxBatch &&
		parseSize(limit) != 0 {
		a.add(&smallPush, s, "client_max_body_size", "is less than %d, which a batch may have: larger ones are answered 413",
			limits.MaxBatch)
	}
}

// anyoneCanEnter reports whether every user of this machine may enter dir. A missing dir belongs to another machine:
// false.
func anyoneCanEnter(dir string) bool {
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
