package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func TestBuild(t *testing.T) {
	const before, after = "package p\n\nfunc (t *T[K]) f(a, b, c bool, n int, list []int) (x struct{ n int }) {\n\t",
		"\n\treturn\n}\n"
	tests := []struct{ name, body, line, want string }{
		{"condition", "if n := n; n > 2 {\n}", "n > 2 -> false", `if n := n; (!mutantOn("d/mutants.txt:2") && (n > 2)) {`},
		{"case", "switch {\ncase a && b:\n}", "a && b -> true", `case (mutantOn("d/mutants.txt:2") || (a && b)):`},
		{"operand", "_ = a &&\nb && c", "b -> true", `a &&` + "\n" + `(mutantOn("d/mutants.txt:2") || (b)) && c`},
		{"over lines", "_ = c || a &&\n(b || c)", "a&&(b||c) -> true", `(mutantOn("d/mutants.txt:2") || (a &&` +
			"\n" + `(b || c)))`},
		{"assigned", "n = n / 2", "n/2 -> n", `n = mutantOr("d/mutants.txt:2", n / 2, n)`},
		{"the value, not what is assigned to", "n = n", "n -> 0", `n = mutantOr("d/mutants.txt:2", n, 0)`},
		{"the value, not the name of the field", "x = struct{ n int }{n: n}", "n -> 0",
			`{n: mutantOr("d/mutants.txt:2", n, 0)}`},
		{"call", "_ = max(n, min(n, 2))", "min(n, 2) -> 2 + n", `_ = max(n, mutantOr("d/mutants.txt:2", min(n, 2), 2 + n))`},
		{"statement", "list[f(a).n]++", "list[f(a).n]++ -> deleted", `if !mutantOn("d/mutants.txt:2") { list[f(a).n]++ }`},
		{"after if", "a := b\nif a {\n_ = a\n}", "if a -> false", `if (!mutantOn("d/mutants.txt:2") && (a)) {`},
		{"after case", "switch {\ncase a:\n_ = a\n}", "case a -> true", `case (mutantOn("d/mutants.txt:2") || (a)):`},
		{"after return", "_ = x\nreturn x", "return x -> y", `return mutantOr("d/mutants.txt:2", x, y)`},
		{"second of several", "f(a)\nf(a)", "f(a) #2 -> deleted", "f(a)\n" + `if !mutantOn("d/mutants.txt:2") { f(a) }`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mutants, err := parseList("d/mutants.txt", "T.f\n\tTestX: "+tt.line+"\n")
			if err != nil || len(mutants) != 1 {
				t.Fatalf("got %v, %v, want one mutant", mutants, err)
			}
			src := before + tt.body + after
			pkg, out, err := buildMutants(map[string][]byte{"d/f.go": []byte(src), "d/g.go": []byte("package p\n")}, mutants)
			if err != nil || pkg != "p" || len(out) != 1 {
				t.Fatalf("got package %q, %q, %v, want another d/f.go", pkg, out, err)
			}
			mutated := string(out["d/f.go"])
			if !strings.Contains(mutated, tt.want) {
				t.Errorf("got\n%s\nwant %s in it", mutated, tt.want)
			}
			if got, want := strings.Count(mutated, "\n"), strings.Count(src, "\n"); got != want {
				t.Errorf("got %d lines, want %d as before", got, want)
			}
			if _, err := parser.ParseFile(token.NewFileSet(), "", mutated, 0); err != nil {
				t.Errorf("the output is not valid Go: %v", err)
			}
		})
	}
}

func TestBuildSeveral(t *testing.T) {
	mutants, err := parseList("mutants.txt",
		"# what this is\n\nf\n\tTestX: g(a && b) -> deleted\n\tother/dir/TestY: b -> false\n")
	if err != nil || len(mutants) != 2 {
		t.Fatalf("got %v, %v, want two mutants", mutants, err)
	}
	if m := mutants[1]; m.pkg != "other/dir" || m.test != "TestY" || m.function != "f" || m.id != "mutants.txt:5" {
		t.Errorf("got %+v, want TestY of other/dir for f", m)
	}
	source := []byte("package p\nfunc f(a, b bool) {\ng(a && b)\n}\n")
	_, out, err := buildMutants(map[string][]byte{"f.go": source}, mutants)
	want := `if !mutantOn("mutants.txt:4") { g(a && (!mutantOn("mutants.txt:5") && (b))) }`
	if err != nil || !strings.Contains(string(out["f.go"]), want) {
		t.Errorf("got\n%s\n%v, want\n%s", out["f.go"], err, want)
	}
}

func TestBadLists(t *testing.T) {
	for _, list := range []string{
		"f\n\tTestX: a",
		"f\n\ta -> false",
		"f\n\tTestX a -> false",
		"\tTestX: a -> false",
		"f\n\tTestX: b -> false", // missing
		"f\n\tTestX: a -> false", // twice
		"f\n\tTestX: a #3 -> false",
		"f\n\tTestX: c #2 -> false", // once
		"g\n\tTestX: a -> false",
		"f\n\tTestX: a -> deleted", // no statement
		"f\n\tTestX: a || c -> false\n\tTestX: a || c -> c",
		"f\n\tTestX: g() -> deleted", // in the head of an if
	} {
		mutants, err := parseList("mutants.txt", list)
		if err == nil {
			_, _, err = buildMutants(map[string][]byte{"f.go": []byte("package p\nfunc f(a, c bool) {\n_ = a && (a || c)\n" +
				"if g(); true {\n}\n}\n")}, mutants)
		}
		if err == nil {
			t.Errorf("%q: got %+v, want an error", list, mutants)
		}
	}
}

// TestLists finds the code of every mutant in the repository's lists.
func TestLists(t *testing.T) {
	t.Chdir("../..")
	if mutants, _, err := findMutants(t.TempDir(), ""); err != nil || len(mutants) == 0 {
		t.Errorf("got %d mutants, %v", len(mutants), err)
	}
}
