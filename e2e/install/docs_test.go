package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var (
	// installs matches a command that installs or copies a part of Gatehouse, or what it needs.
	installs = regexp.MustCompile(`^(\(?cd \S+ && )?(sudo )?(go (install|get)|go mod (tidy|edit)|pip3? (install|download)|` +
		`npm (install|i|ci)|mvn|helm (install|pull|upgrade --install)|cp -r|apt(-get)? install|dpkg -i|(docker|podman) pull) `)
	comment  = regexp.MustCompile(`\s+#.*| {2,}--? .*`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// command is an installing command of a page.
type command struct{ page, text string }

// readCommands returns the installing commands of all pages: lines of blocks, and code within a sentence.
func readCommands(t *testing.T) []command {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.md").Output()
	require.NoError(t, err)
	var commands []command
	for page := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(page, "docs/decisions/") || page == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		prose := ""
		fenced := false
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
			block, indented := strings.CutPrefix(line, "    ")
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
				continue
			}
			if !indented && !fenced {
				prose += line
				continue
			}
			if block = strings.TrimSpace(comment.ReplaceAllString(block, "")); installs.MatchString(block + " ") {
				commands = append(commands, command{page, strings.Join(strings.Fields(block), " ")})
			}
		}
		for _, span := range codeSpan.FindAllStringSubmatch(prose, -1) {
			if code := strings.Join(strings.Fields(span[1]), " "); installs.MatchString(code+" ") &&
				strings.Count(code, " ") > 1 && !strings.Contains(code, "…") {
				commands = append(commands, command{page, code})
			}
		}
	}
	return commands
}

// runElsewhere has the commands that other tests run: a page, the beginning of a command, the file of a test, and the
// test's own form of the command.
var runElsewhere = [][4]string{
	{"README.md", "sudo apt-get install ", "scripts/readme-test.sh", "sudo apt-get install"},
	{"docs/install/machine.md", "apt-get install ./build", "release/deb-test.sh", "gatehouse"},
	{"docs/install/nginx.md", "apt-get install nginx-light", "scripts/nginx-install-test.sh", "docs/install/nginx.md"},
	{"docs/install/nginx.md", "apt-get install ./build", "release/deb-test.sh", "gatehouse"},
	{"docs/operate.md", "apt-get install ./gatehouse_NEW.deb", "e2e/daily_test.go", "apt-get install ./gatehouse_NEW.deb"},
	{"docs/operate.md", "apt-get install --allow-downgrades", "e2e/daily_test.go", "apt-get install --allow-downgrades"},
	{"docs/install/README.md", "apt-get install --allow-downgrades", "release/deb-test.sh",
		"apt install --allow-downgrades"},
}

// TestEachCommandIsRun fails for an installing command of a page that no test runs, and for a test without a command.
func TestEachCommandIsRun(t *testing.T) {
	t.Parallel()
	run := map[command]bool{}
	all := readCommands(t)
	for _, c := range cases {
		for _, found := range c.find(t, all) {
			run[found] = true
		}
	}
	for _, e := range runElsewhere {
		found := false
		for _, c := range all {
			if c.page == e[0] && strings.HasPrefix(c.text, e[1]) {
				run[c], found = true, true
			}
		}
		text, err := os.ReadFile(filepath.Join(root, e[2]))
		if !found || err != nil || !strings.Contains(string(text), e[3]) {
			t.Errorf("want %q in %s, and %q in %s (%v)", e[1], e[0], e[3], e[2], err)
		}
	}
	for _, c := range all {
		if !run[c] {
			t.Errorf("%s: no test runs: %s", c.page, c.text)
		}
	}
}
