package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// documented names the case for each row of the first tables in docs/requests.md: a row by the first column, a phrase
// of the second one, and the case by topic and name.
var documented = []struct{ row, phrase, topic, name string }{
	{"200, 304", "the object is in shared memory", "preconditions", "no precondition"},
	{"200, 304", "`Cache-Status: gatehouse; hit`", "preconditions", "its tag"},
	{"upstream, with `Cache-Status: gatehouse; fwd=…`", "the rule has a cache", "caching", "a miss"},
	{"`fwd=uri-miss`", "isn't at the edge", "caching", "a miss"},
	{"`fwd=uri-miss; detail=fetch-failed`", "got no answer", "lately", "what can't be fetched goes upstream"},
	{"`fwd=stale; detail=not-in-step`", "wasn't in step", "not in step", "what may be stale goes upstream"},
	{"`fwd=stale; detail=no-state`", "the memory is empty", "no state",
		"an edge that knows nothing sends upstream"},
	{"`fwd=method`", "neither GET nor HEAD", "caching", "PUT goes upstream"},
	{"`fwd=bypass`", "`If-Match`", "preconditions", "If-Match is the origin's"},
	{"`fwd=bypass`", "`If-Unmodified-Since`", "preconditions",
		"If-Unmodified-Since is the origin's, like If-Match"},
	{"`fwd=bypass`", "no acceptable encoding",
		"negotiation", "nothing: the upstream's to answer"},
	{"`fwd=bypass`", "`content-type: application/grpc`",
		"refusals", "gRPC goes upstream, whose answers have its form"},
	{"`fwd=bypass`, too large", "key over 2048", "keys", "a long query goes upstream"},
	{"`fwd=bypass`, too large", "more than 64 parameters",
		"keys", "a query of too many pairs goes upstream"},
	{"`fwd=bypass`, too large", "`Accept-Encoding` over 512 bytes",
		"negotiation", "a very long one goes upstream"},
	{"upstream, with `x-gatehouse-device` and `x-gatehouse-permissions`", "the credential is good",
		"refusals", "with the credential"},
	{"upstream, with `x-gatehouse-device` and `x-gatehouse-permissions`", "is removed",
		"refusals", "an identity that a client made up is removed"},
	{"200 with a token", "`Cache-Control: no-store`", "basic", "a token for the credential"},
	{"401", "missing", "refusals", "no credential"},
	{"401", "doubled", "refusals", "a doubled id"},
	{"401", "malformed", "refusals", "half a credential"},
	{"401", "wrong", "refusals", "a wrong secret"},
	{"401", "the device is unknown", "refusals", "an unknown device"},
	{"403", "a permission is missing", "refusals", "without the permission"},
	{"403", "no rule matches and `default: deny`", "basic", "what no rule is about"},
	{"503 with `Retry-After`", "no state yet", "no state", "and lets nobody in"},
	{"503 with `Retry-After`", "sidecar away", "lately", "a device that was never verified"},
	{"503 with `Retry-After`", "it would be a 401", "not in step", "a wrong secret may have become a good one"},
}

// TestReadme: each row of the table has a case, and the table has the subject of each case.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../docs/requests.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if strings.HasPrefix(line, "## Credentials") {
			break // the end of these tables
		}
		if first, ok := strings.CutPrefix(cells[0], "| "); ok && len(cells) == 2 && cells[1] != "when |" {
			rows[first] = cells[1]
		}
	}
	named := map[string]bool{}
	for _, d := range documented {
		named[d.row] = true
		if !strings.Contains(rows[d.row], d.phrase) {
			t.Errorf("the row %q doesn't say %q, which the case %q is about", d.row, d.phrase, d.name)
		}
		if !slices.ContainsFunc(casesOf(d.topic), func(c testCase) bool { return c.name == d.name }) {
			t.Errorf("there is no case %q of %s", d.name, d.topic)
		}
	}
	for row := range rows {
		if !named[row] {
			t.Errorf("the row %q has no case", row)
		}
	}
}

func casesOf(name string) []testCase {
	if name == "basic" {
		return basic
	}
	return append(tables[name], outages[name]...)
}
