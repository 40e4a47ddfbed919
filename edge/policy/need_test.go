package policy

import "testing"

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
