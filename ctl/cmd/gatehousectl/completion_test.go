package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// newPath returns a directory with gatehousectl, for command.
func newPath(t *testing.T) (dir string) {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, os.Symlink(program, filepath.Join(dir, "gatehousectl")))
	return dir
}

// command returns a command whose PATH begins with dir.
func command(dir, name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "TERM=dumb", "GATEHOUSECTL_OF_TEST=1")
	return c
}

// TestComplete: words as zsh and fish pass them, and as bash does, which also splits at = and :.
func TestComplete(t *testing.T) {
	m := grammar(t)
	for line, want := range map[string]string{
		"dev":                                  "device",
		"device re":                            "revoke",
		"device --author a re":                 "revoke",
		"device --author=a re":                 "revoke",
		"nginx ":                               "render install",
		"completion ":                          "bash zsh fish",
		"get --encoding ":                      "identity gzip br zstd",
		"get --encoding=g":                     "gzip",
		"get --encoding = g":                   "gzip",
		"get --encoding =":                     "identity gzip br zstd",
		"get --head --encoding g":              "gzip",
		"get -h --encoding g":                  "gzip",
		"status --sidecar=127.0.0.1:9090 --js": "--json",
		"status --sidecar = 127.0.0.1 : 9090 --js": "--json",
		"check http : //a:b ":                      "",
		"check ":                                   ":file",
		"check a ":                                 "",
		"check - ":                                 "",
		"rehearse --from a --to b log ":            ":file",
		"put /a --file ":                           ":file",
		"put /a --file=":                           ":file",
		"nginx install ":                           ":dir",
		"device set a --no-d":                      "--no-disabled",
		"list --redis-p":                           "--redis-password-file",
		"get /a ":                                  "",
		"pot ":                                     "",
		"put /a --none ":                           "",
		"put --none=":                              "",
		"put /a --ttl ":                            "",
	} {
		var out bytes.Buffer
		printCompletions(&out, m.Model.Node, strings.Split(line, " "))
		var got []string
		for candidate := range strings.Lines(out.String()) {
			candidate, _, _ = strings.Cut(strings.TrimSpace(candidate), "\t")
			got = append(got, candidate)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// completing are command lines for real shells, and the candidates for their last words.
var completing = []struct {
	line string
	want []string
}{
	{"dev", []string{"device"}},
	{"nginx ", []string{"install", "render"}},
	{"get --encoding=", []string{"br", "gzip", "identity", "zstd"}},
	{"status --sidecar=127.0.0.1:9090 --js", []string{"--json"}},
	{"put /a --file ./dir/on", []string{"./dir/one.yaml"}},
	{"nginx install ./di", []string{"./dir"}},
	{"get /a ", nil},
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, test := range completing {
		lines = append(lines, "gatehousectl "+test.line)
	}
	// Each shell's output for the lines, each followed by "<end>".
	shells := map[string]func(t *testing.T, dir string) (out string, err error){
		"bash": func(_ *testing.T, dir string) (string, error) {
			// COMP_WORDS as readline splits: also at = and :, which are words.
			const script = `source <(gatehousectl completion bash)
				compopt() { :; } # works only within readline
				for rest; do
				  COMP_WORDS=()
				  while [[ -n $rest ]]; do
				    if [[ $rest == ' ' ]]; then COMP_WORDS+=(""); fi
				    if [[ $rest =~ ^\ +(.*)$ ]]; then rest=${BASH_REMATCH[1]}; continue; fi
				    [[ $rest =~ ^([=:]+|[^=:\ ]+)(.*)$ ]]
				    COMP_WORDS+=("${BASH_REMATCH[1]}") rest=${BASH_REMATCH[2]}
				  done
				  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) word=${COMP_WORDS[-1]}
				  [[ $word != [=:]* ]] || word=
				  _gatehousectl gatehousectl "$word" ""
				  printf '%s\n' "${COMPREPLY[@]}" "<end>"
				done`
			out, err := command(dir, "bash", append([]string{"-c", script, "bash"}, lines...)...).Output()
			return string(out), err
		},
		"zsh": func(t *testing.T, dir string) (string, error) {
			// An interactive zsh with a compadd that prints candidates. All completion ends in compadd.
			const rc = `PS1= PS2=; autoload -Uz compinit; compinit -u -D
				source <(gatehousectl completion zsh)
				compadd() {
				  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
				  local -a hits; local -A before
				  builtin compadd -A hits "$@"
				  zparseopts -E p:=before
				  print -l -- "${(@)hits/#/${before[-p]}}"
				}
				mark() { print -- "<mark>"; }
				compprefuncs=(mark) comppostfuncs=(mark exit)
				bindkey '^I' complete-word
				print -- "<ready>"`
			if err := os.WriteFile(filepath.Join(dir, ".zshrc"), []byte(rc), 0o600); err != nil {
				return "", err
			}
			out := ""
			for _, line := range lines {
				shell := command(dir, "zsh", "-d", "-i")
				shell.Env = append(shell.Env, "ZDOTDIR="+dir)
				terminal, err := pty.StartWithSize(shell, &pty.Winsize{Rows: 50, Cols: 200})
				if err != nil {
					return "", err
				}
				t.Cleanup(func() { _ = shell.Process.Kill(); _ = shell.Wait(); _ = terminal.Close() })
				var shown logbuffer.Buffer
				go func() { _, _ = io.Copy(&shown, terminal) }()
				await.Until(t, "zsh", func() bool { return strings.Contains(shown.String(), "<ready>") })
				if _, err := terminal.WriteString(line + "\t"); err != nil {
					return "", err
				}
				await.Until(t, "completion", func() bool { return strings.Count(shown.String(), "<mark>") == 2 })
				out += strings.Split(shown.String(), "<mark>")[1] + "<end>"
			}
			return out, nil
		},
		"fish": func(_ *testing.T, dir string) (string, error) {
			const script = "gatehousectl completion fish | source; " +
				"for line in $argv; complete -C $line; echo '<end>'; end"
			out, err := command(dir, "fish", append([]string{"--no-config", "-c", script}, lines...)...).Output()
			return string(out), err
		},
	}
	for name, ask := range shells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newPath(t)
			require.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "dir"), 0o700),
				os.WriteFile(filepath.Join(dir, "dir", "one.yaml"), nil, 0o600)))
			out, err := ask(t, dir)
			answers := strings.Split(out, "<end>")
			if err != nil || len(answers) != len(completing)+1 {
				t.Fatalf("%v: %s", err, out)
			}
			for n, test := range completing {
				var got []string
				for line := range strings.Lines(answers[n]) {
					candidate, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
					candidate = strings.TrimSuffix(strings.TrimPrefix(candidate, "--encoding="), "/") // fish has both
					if candidate != "" {
						got = append(got, candidate)
					}
				}
				slices.Sort(got)
				if got = slices.Compact(got); !slices.Equal(got, test.want) {
					t.Errorf("%q: got %q, want %q", test.line, got, test.want)
				}
			}
		})
	}
}

// TestFilesAreCompleted: completion goes by placeholders, so flags and arguments for files have a file's placeholder.
func TestFilesAreCompleted(t *testing.T) {
	for _, node := range grammar(t).everything() {
		for _, flag := range node.Flags {
			if strings.Contains(flag.Name, "file") && flag.PlaceHolder != "FILE" {
				t.Errorf("%s --%s: placeholder %q, want FILE", node.Path(), flag.Name, flag.PlaceHolder)
			}
		}
		for _, argument := range node.Positional {
			if regexp.MustCompile("file|log$|source|destination").MatchString(argument.Name) &&
				argument.Tag.PlaceHolder != "FILE" {
				t.Errorf("%s %s: placeholder %q, want FILE", node.Path(), argument.Name, argument.Tag.PlaceHolder)
			}
		}
	}
}

// TestMan: the page is well-formed for man and mandoc, and has all commands, flags and exit codes.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	page := newShell(t).ok("", "man")
	if !strings.HasPrefix(page, ".TH GATEHOUSECTL 1 2023-11-14 ") {
		t.Errorf("begins with %.60q", page)
	}
	file := filepath.Join(t.TempDir(), "gatehousectl.1")
	require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
	dir := newPath(t)
	if out, err := command(dir, "mandoc", "-Tlint", "-Wwarning", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v: %s", err, out)
	}
	show := command(dir, "man", "--warnings", "-l", file)
	show.Env = append(show.Env, "MANWIDTH=1000", "LC_ALL=C.UTF-8", "GROFF_NO_SGR=1", "MANPAGER=cat")
	var stdout, stderr bytes.Buffer
	show.Stdout, show.Stderr = &stdout, &stderr
	if err := show.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("man: %v: %s", err, stderr.String())
	}
	text := strings.Join(strings.Fields(regexp.MustCompile(".\x08").ReplaceAllString(stdout.String(), "")), " ")
	var want []string
	for _, node := range grammar(t).everything() {
		if node.Leaf() {
			want = append(want, node.Path()+" ", strings.Join(strings.Fields(node.Tag.Help), " "), node.Tag.Get("example"))
		}
		for _, flag := range node.Flags {
			want = append(want, "--"+flag.Name, valueHelp(flag.Value))
		}
	}
	for _, exit := range exitCodes {
		want = append(want, fmt.Sprint(exit.code, " ", exit.meaning))
	}
	for _, part := range want {
		if !strings.Contains(text, strings.TrimSpace(part)) && part != "--disabled" {
			t.Errorf("the page has no %q", part)
		}
	}
}

// TestRoff: nothing in a text is a request or an escape.
func TestRoff(t *testing.T) {
	for text, want := range map[string]string{`a\b`: `a\eb`, "--c": `\-\-c`, ".d": `\&.d`, "'e": `\&'e`, "f\ng": "f g"} {
		if got := escapeRoff(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
