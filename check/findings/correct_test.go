package findings

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
)

const hosts = `
virtual_hosts:
  shop: {domains: [shop.example, "*.shop.example"], default: deny, source: {header: x-real-ip}}
  'api':
    domains:
    - "api.example"
    credentials: {basic: true}
    rules:
    - {name: "all", match: {prefix: '/v1/', methods: [GET, "POST"]}, cache: {scope: [host, device]}, auth: {enforce: true}}
`

// mistakes replace words of the rules.
var mistakes = []string{"", "x", "é", "30", "true", "'yes'", "Off", "[]", "[a, b]", "{}", "{a: b}", "null", "~", "get",
	"PSOT", "on_mis", "defualt", "metods", "would_deny", "devise", "/a/*", "'/a/{b}'", "a//b?c", "A.Example:80",
	"https://b.example/", "\"a b\"", "'it''s'", `"a\tb"`, "&a x", "*a", "!!str 1", "|", "[", "a: b", "\tx", "#", "Shop",
	"x-gatehouse-device"}

// TestCorrect makes random mistakes in rules. The line from Correct, put in the place of the wrong line, removes the
// problem and makes no new problem.
func TestCorrect(t *testing.T) {
	text, err := os.ReadFile("../../nginx/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped := string(text) + hosts
	problems := func(text string) (all []string, r Rules) {
		source, err := ParseSource([]byte(text))
		if err != nil {
			return nil, r
		}
		tree, err := source.Root().Tree()
		if err != nil {
			return nil, r
		}
		if _, err := policy.Parse(tree); err != nil {
			all = strings.Split(err.Error(), "\n")
		}
		return all, Rules{source, source.Root(), tree}
	}
	if got, r := problems(shipped); got != nil || r.Tree == nil {
		t.Fatalf("without a mistake: %q", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	found, corrected := 0, 0
	for range map[bool]int{true: 800, false: 8000}[testing.Short()] {
		at := random.IntN(len(shipped))
		begin := strings.LastIndexAny(shipped[:at], " \n[{,:'\"") + 1
		end := at + strings.IndexAny(shipped[at:]+"\n", " \n]},:'\"")
		if begin > end {
			continue
		}
		wrong := shipped[:begin] + mistakes[random.IntN(len(mistakes))] + shipped[end:]
		before, r := problems(wrong)
		for _, problem := range before {
			field, _, _ := strings.Cut(problem, ": ")
			place, line := r.Locate(Place{}, field), r.Correct(field)
			if found++; line == "" || place.Line == 0 || field == "credentials" && strings.Contains(problem, "is missing") {
				continue
			}
			corrected++
			lines := strings.Split(wrong, "\n")
			old := lines[place.Line-1]
			lines[place.Line-1] = old[:len(old)-len(strings.TrimLeft(old, " "))] + line
			after, now := problems(strings.Join(lines, "\n"))
			if now.Tree == nil || slices.Contains(after, problem) || len(after) >= len(before) {
				t.Fatalf("%q: line %d is %q; with %q: %q", problem, place.Line, old, line, after)
			}
		}
	}
	if t.Logf("%d of %d corrected", corrected, found); corrected < 10 {
		t.Error("too few")
	}
}
