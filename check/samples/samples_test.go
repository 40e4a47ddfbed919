package samples

import "testing"

// TestRoute: a proxy's choice among domains.
func TestRoute(t *testing.T) {
	domains := []Domain{{"*", 0}, {"a.example", 1}, {"*.example", 2}, {"*-b.example", 3}, {"shop.*", 4},
		{"c.example:80", 5}}
	for host, want := range map[string]int{"a.example": 1, "x.example": 2, ".example": 0, "example": 0, "x-b.example": 3,
		"shop.example": 2, "shop.test": 4, "shop.": 0, "a.example:1": 0, "c.example:80": 5, "c.example": 2, "": 0} {
		if got := FindOwner(domains, host); got != want {
			t.Errorf("%q: got %d, want %d", host, got, want)
		}
	}
	if got := FindOwner(domains[1:2], "b"); got != -1 {
		t.Errorf("got %d for a host that no domain takes", got)
	}
}
