package policy

import (
	"strings"
	"testing"
)

func TestServedBy(t *testing.T) {
	c, err := ParseBytes([]byte(`{"credentials": {"basic": true}, "rules": [
		{"name": "help", "match": {"prefix": "/help/"}, "cache": {"languages": ["de", "en-GB"], "query": ["page"]}},
		{"name": "me", "match": {"prefix": "/me/"}, "auth": {}, "cache": {"scope": ["host", "device"]}},
		{"name": "api", "match": {"prefix": "/api/"}, "auth": {}},
		{"name": "post", "match": {"path": "/post", "methods": ["POST"]}},
		{"match": {"prefix": "/"}, "cache": {}}],
		"virtual_hosts": {"shop": {"domains": ["shop.example"], "rules": [{"match": {"prefix": "/a/"}, "cache": {}}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"/help/a": "help", "/help/a#de": "help", "/help/a?page=1#en-gb": "help", "/x?y=1": "4", "/post": "4",
		"@d//:a.example/me/x": "me", "//shop/a/b": "shop/0", "/help": "help",
		"/help/a#fr":           "has not fr among its languages, de, en-gb",
		"/x#de":                "has no languages: set cache: {languages: [de]}",
		"/help/a?page=1&x=2":   "leaves the parameter x out",
		"/api/x":               "(api) has no cache",
		"@d/help/a":            "has not scope device",
		"//:a.example/help/a":  "has not scope host",
		"/me/x":                "has scope device",
		"@d/me/x":              "has scope host",
		"//shop/b":             "no rule of the virtual host shop matches /b",
		"//blog/a/b":           "no virtual host blog",
		"//shop:a.example/a/b": "has not scope host",
	} {
		rule, why := c.ServedBy(key)
		if (rule < 0 || c.Rules[rule].Name != want) && (rule >= 0 || !strings.Contains(why, want)) {
			t.Errorf("%s: got %d, %q, want %q", key, rule, why, want)
		}
	}
}
