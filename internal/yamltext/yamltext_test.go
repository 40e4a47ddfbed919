package yamltext

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// TestSyntaxErrors makes random typical slips in the shipped configurations. If YAML refuses the text, the error is at
// the line of the slip.
func TestSyntaxErrors(t *testing.T) {
	slips := map[string]func(lines []string, at int) string{
		"tab": func(lines []string, at int) string {
			blanks := len(lines[at]) - len(strings.TrimLeft(lines[at], " "))
			if blanks == 0 {
				return ""
			}
			return "\t" + lines[at][blanks:]
		},
		"quote": func(lines []string, at int) string {
			if quote := strings.LastIndexAny(lines[at], `"'`); quote >= 0 {
				return lines[at][:quote] + lines[at][quote+1:]
			}
			return ""
		},
		"bracket": func(lines []string, at int) string {
			if strings.ContainsAny(lines[at], "{[") && strings.HasSuffix(lines[at], "}") {
				return strings.TrimSuffix(lines[at], "}")
			}
			return ""
		},
		"deeper":     func(lines []string, at int) string { return " " + lines[at] },
		"less deep":  func(lines []string, at int) string { return strings.TrimPrefix(lines[at], " ") },
		"colon":      func(lines []string, at int) string { return strings.Replace(lines[at], ":", "", 1) },
		"no blank":   func(lines []string, at int) string { return strings.Replace(lines[at], ": ", ":", 1) },
		"key twice":  func(lines []string, at int) string { return lines[at] + "\n" + lines[at] },
		"no hyphen":  func(lines []string, at int) string { return strings.Replace(lines[at], "- ", "  ", 1) },
		"odd escape": func(lines []string, at int) string { return strings.Replace(lines[at], `"`, `"\q`, 1) },
	}
	for name, slip := range slips {
		random, wrong, exact := rand.New(rand.NewPCG(3, uint64(len(name)))), 0, 0
		for _, file := range []string{"../../nginx/rules.yaml", "../../envoy/envoy.yaml"} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(text), "\n")
			for range 60 {
				at := random.IntN(len(lines))
				slipped := slip(lines, at)
				if slipped == "" || slipped == lines[at] || strings.HasPrefix(strings.TrimSpace(lines[at]), "#") {
					continue
				}
				all := append(append(append([]string(nil), lines[:at]...), slipped), lines[at+1:]...)
				_, err := Parse([]byte(strings.Join(all, "\n")))
				if err == nil {
					continue // valid, with another meaning
				}
				wrong++
				syntax, is := errors.AsType[*SyntaxError](err)
				line := at + 1
				if name == "key twice" {
					line++
				}
				switch {
				case !is || syntax.Fix == "" || strings.Contains(err.Error(), "yaml:"):
					t.Errorf("%s: got %v without a fix", name, err)
				case syntax.Line == line, strings.Contains(name, "deep") && syntax.Line == line+1:
					exact++
				default:
					t.Logf("%s: %s:%d: %q gives line %d, %v", name, file, line, slipped, syntax.Line, err)
				}
			}
		}
		if t.Logf("%s: %d of %d at the line", name, exact, wrong); wrong < 3 || exact*10 < wrong*9 && name != "no hyphen" {
			t.Errorf("%s: only %d of %d errors are at the line of the slip", name, exact, wrong)
		}
	}
}

// TestSyntaxOfJSON: the line of a missing comma.
func TestSyntaxOfJSON(t *testing.T) {
	for text, want := range map[string]int{"{\n\"a\": 1\n\"b\": 2\n}": 3, "{\n\"a\": [1,\n2,\n}": 4, "{\"a\": 1,}": 1} {
		_, err := Parse([]byte(text))
		if syntax, is := errors.AsType[*SyntaxError](err); is && syntax.Line != want {
			t.Errorf("%q: line %d, want %d: %v", text, syntax.Line, want, err)
		}
	}
}
