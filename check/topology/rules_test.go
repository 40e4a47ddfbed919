package topology

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/nginx"
)

func TestRuleChecks(t *testing.T) {
	for _, tt := range []struct {
		name, rules string
		want        []string // field and a part of the text
	}{
		{"none", `[{"match": {"prefix": "/a/"}, "auth": {}}, {"match": {"prefix": "/"}, "cache": {}}]`, nil},
		{"a broader rule that only reads",
			`[{"match": {"prefix": "/", "methods": ["GET"]}}, {"match": {"path": "/a"}, "auth": {}}]`,
			[]string{"rules[0].match takes GET from rules[1], below it, which asks for more"}},
		{"several narrower ones",
			`[{"match": {"prefix": "/", "methods": ["GET", "PUT"]}}, {"match": {"path": "/a"}, "auth": {}}, {"match": {"prefix": "/b/", "methods": ["PUT", "POST"]}, "auth": {}}]`,
			[]string{"rules[0].match takes GET, PUT from rules[1], rules[2], below it, which ask for more"}},
		{"other methods",
			`[{"match": {"prefix": "/", "methods": ["GET"]}}, {"match": {"path": "/a", "methods": ["POST"]}, "auth": {}}]`, nil},
		{"preflights", `[{"match": {"prefix": "/", "methods": ["OPTIONS"]}}, {"match": {"path": "/a"}, "auth": {}}]`, nil},
		{"a rule of the same path",
			`[{"match": {"prefix": "/a/", "methods": ["GET"]}}, {"match": {"prefix": "/a/"}, "auth": {}}]`, nil},
		{"a narrower rule",
			`[{"match": {"path": "/a/b", "methods": ["GET"]}}, {"match": {"prefix": "/a/"}, "auth": {}}]`, nil},
		{"a rule above both",
			`[{"match": {"path": "/a", "methods": ["GET"]}, "auth": {}}, {"match": {"prefix": "/", "methods": ["GET"]}}, {"match": {"path": "/a"}, "auth": {}}]`, nil},
		{"fewer permissions",
			`[{"match": {"prefix": "/", "methods": ["GET"]}, "auth": {"permissions": ["r"]}}, {"match": {"path": "/a"}, "auth": {"permissions": ["r", "w"]}}]`, []string{"rules[0].match takes GET"}},
		{"other permissions",
			`[{"match": {"prefix": "/", "methods": ["GET"]}, "auth": {"permissions": ["r", "w"]}}, {"match": {"path": "/a"}, "auth": {"permissions": ["r"]}}]`, nil},
		{"tokens", `[{"match": {"prefix": "/"}, "cache": {}}]`, nil},
		{"writes go past", `[{"match": {"prefix": "/a/b/"}, "cache": {}}, {"match": {"prefix": "/a/"}, "auth": {}}]`,
			[]string{
				"rules[0].match has no methods, so what is no GET goes upstream without a credential, and never reaches rules[1]"}},
		{"writes go past several", `[{"name": "x", "match": {"path": "/a/b"}, "cache": {}}, {"match": {"path": "/a/c"}, "cache": {}},
			{"match": {"prefix": "/a/"}, "auth": {}}, {"match": {"path": "/b"}, "cache": {}}]`,
			[]string{"rules[2].match never gets what is no GET for the paths of rules[0] (x), rules[1], which have no methods"}},
		{"a trial", `[{"match": {"prefix": "/", "methods": ["GET"]}, "auth": {"enforce": false}}, {"match": {"path": "/a"}, "auth": {"enforce": true}}]`,
			[]string{"rules[0].auth.enforce is false", "rules[0].match takes GET from rules[1]"}},
		{"a cache on trial", `[{"match": {"prefix": "/"}, "cache": {"serve": false}}]`,
			[]string{"rules[0].cache.serve is false"}},
		{"methods", `[{"match": {"prefix": "/", "methods": ["PSOT", "PURGE", "M-SEARCH", "X"]}, "auth": {}}]`,
			[]string{"rules[0].match.methods[0] PSOT, X: is no registered method"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := nginx.Parse([]byte(`{"credentials": {"basic": true}, "rules": ` + tt.rules + `}`))
			if err != nil {
				t.Fatal(err)
			}
			report := findings.Report{}
			(&RuleChecks{Report: &report, Source: &findings.Rules{}}).Check(c)
			var got []string
			for _, f := range report.Findings {
				got = append(got, f.Path+" "+f.Message)
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
