package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestDoubts(t *testing.T) {
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
			var tree any
			if err := json.Unmarshal([]byte(`{"credentials": {"basic": true}, "rules": `+tt.rules+`}`), &tree); err != nil {
				t.Fatal(err)
			}
			c, err := Parse(tree)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range c.Doubts() {
				got = append(got, d.Field+" "+d.Text)
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNeed(t *testing.T) {
	c := &Config{Rules: []Rule{
		{Match: Match{Path: "/a", Methods: []string{"GET"}}, Auth: &Auth{Permissions: []string{"r"}}},
		{Match: Match{Prefix: "/a"}, Auth: &Auth{}},
		{Match: Match{Prefix: "/open"}},
		{Match: Match{Path: "/session", Methods: []string{"POST"}}, IssueSession: true},
	}, DenyByDefault: true}
	for _, tt := range []struct {
		method, path, other string
		weaker              bool // than GET of other
	}{
		{"GET", "/a", "/a", false}, {"POST", "/a", "/a", true}, {"GET", "/open", "/a", true}, {"GET", "/a", "/open", false},
		{"GET", "/none", "/a", false}, {"GET", "/open", "/none", true}, {"POST", "/session", "/open", false},
		{"HEAD", "/a/", "/a", false},
	} {
		if got := c.Need(tt.method, tt.path).Weaker(c.Need("GET", tt.other)); got != tt.weaker {
			t.Errorf("%s %s asks for less than %s: got %v, want %v", tt.method, tt.path, tt.other, got, tt.weaker)
		}
	}
}
