// Package envoyconfig analyses an Envoy configuration offline: the rules, decoded as Envoy decodes them at load time,
// and the settings around the filter on which the filter's guarantees rest.
package envoyconfig

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// plugin is a Gatehouse filter.
type plugin struct {
	*envoyrules.Plugin
	auth   bool           // some rule needs a credential
	source findings.Rules // lines of the rules' fields
}

// analysis holds the state of one Analyze call.
type analysis struct {
	resources
	*envoyrules.Configuration
	report  findings.Report
	lines   positions
	plugins []*plugin
	chains  []chain
	model   topology.Model
}

// Analyze reads an Envoy configuration, YAML or JSON: a bootstrap file, a resource with listeners, or the output of
// Envoy's /config_dump. Analyze also reads the files of discovered filters that the configuration names.
func Analyze(name string, file []byte) findings.Report {
	a := &analysis{}
	tree, root, err := envoyrules.Parse(file)
	if err != nil {
		a.report.AddSyntax(&unreadable, findings.Place{}, err)
		return a.report
	}
	if m, _ := tree.(map[string]any); !object(m).Has("configs") { // a /config_dump has no file with lines
		a.lines = positions{findings.NewSource(file, root), map[uintptr]findings.Entry{}}
		a.lines.indexEntries(tree, a.lines.source.Root())
	}
	a.findPlugins(name, tree)
	a.chains = a.collectChains(tree)
	for i := range a.chains {
		a.addServer(&a.chains[i])
	}
	for i := range a.chains {
		a.addStoredChoices(&a.chains[i], a.model.Servers[i])
	}
	if len(a.plugins) == 0 {
		a.add(&noFilter, "", "", "has no Gatehouse filter: want an http_filter of type %s with vm_id %q, or with rules in "+
			"vm_config.configuration, or of type %s with the module libgatehouse.so", envoyrules.WasmType, envoyrules.VMID,
			envoyrules.NativeType)
	}
	for _, p := range a.plugins {
		a.checkPlugin(p)
		if p.Rules == nil {
			continue
		}
		if p.Rules.PushListener {
			a.checkPush(p)
		} else {
			a.checkEdge(p)
		}
	}
	a.checkPluginPairs()
	a.checkBypasses()
	a.report.Sort()
	return a.report
}

// findPlugins collects resources and finds Gatehouse's plugins.
func (a *analysis) findPlugins(name string, tree any) {
	a.collectResources(tree)
	a.Configuration = envoyrules.Find(name, tree)
	for _, unread := range a.Unread {
		a.add(&noFile, "", "", "filter %s: its configuration is in another file: %s", unread.Filter, unread.Err)
	}
	sources := map[*envoyrules.Document]findings.Source{nil: a.lines.source}
	for _, d := range a.Documents {
		sources[d] = findings.NewSource(d.Text, d.Root)
		if a.lines.entries != nil {
			a.lines.indexEntries(d.Tree, sources[d].Root())
		}
	}
	for _, bootstrap := range a.Bootstraps {
		a.checkBootstrap(bootstrap)
	}
	for _, p := range a.Plugins {
		a.addPlugin(&plugin{Plugin: p}, sources[p.Document])
	}
}

// checkBootstrap checks fields of the bootstrap.
func (a *analysis) checkBootstrap(o object) {
	if !slices.ContainsFunc(o.Object("stats_config").List("stats_tags"), func(tag object) bool {
		return tag.Text("tag_name") == "rule"
	}) {
		a.add(&noLabels, "", "stats_config.stats_tags",
			"has no tag rule: Prometheus shows the counters of each rule as metrics of their own, without labels")
	}
}

// addPlugin adds a plugin, with source the source of its rules.
func (a *analysis) addPlugin(p *plugin, source findings.Source) {
	a.plugins = append(a.plugins, p)
	if p.Problem != "" {
		path, message, _ := strings.Cut(p.Problem, ": ")
		a.add(&misplaced, p.ListenerName(), path, "%s", message)
		return
	}
	p.source = findings.Rules{Source: source, At: a.lines.rulesEntry(p), Tree: p.Tree}
	if p.RulesError != nil {
		a.ruleChecks(p).ReportErrors(p.RulesError)
		return
	}
	a.report.Rules += len(p.Rules.Rules)
}
