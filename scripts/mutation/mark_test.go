package main

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const before, after = "package p\n\nfunc f(a, b, c bool, n int, list []int) (x struct{ n int }) {\n\t", "\n\treturn\n}\n"
	tests := []struct{ name, body, want string }{
		{"condition", "if n := n; n > 2 { //mutant:TestX false\n}", `if n := n; (!mutantOn("d/f.go:4") && (n > 2)) {`},
		{"case", "switch {\ncase a && b: //mutant:TestX true\n}", `case (mutantOn("d/f.go:5") || (a && b)):`},
		{"first operand", "_ = a && //mutant:TestX true\nb", `_ = (mutantOn("d/f.go:4") || (a)) &&`},
		{"operand between", "_ = a &&\nb && //mutant:TestX true\nc", `(mutantOn("d/f.go:5") || (b)) &&`},
		{"last operand", "_ = a &&\n(b || c) //mutant:TestX true", `(mutantOn("d/f.go:5") || ((b || c)))`},
		{"assigned", "n = n / 2 //mutant:TestX n", `n = mutantOr("d/f.go:4", n / 2, n)`},
		{"field", "x = struct{ n int }{\nn: n, //mutant:TestX 0\n}", `n: mutantOr("d/f.go:5", n, 0),`},
		{"whole call", "_ = max(n, min(n, 2)) //mutant:TestX 2 + n", `_ = mutantOr("d/f.go:4", max(n, min(n, 2)), 2 + n)`},
		{"statement", "list[f(a, b, c, n, list).n]++ //mutant:TestX deleted", `if !mutantOn("d/f.go:4") { list[f(a, b, c, n, list).n]++ }`},
		{"statement over lines", "for range n { //mutant:TestX deleted\n}", `if !mutantOn("d/f.go:4") { for range n {`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src := before + tt.body + after
			_, marks, out, err := parse("d/f.go", []byte(src))
			if err != nil || len(marks) != 1 {
				t.Fatalf("got %v, %v, want one mark", marks, err)
			}
			if m := marks[0]; m.pkg != "d" || m.test != "TestX" {
				t.Errorf("got the test %q of %q, want TestX of d", m.test, m.pkg)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("got\n%s\nwant %s in it", out, tt.want)
			}
			if got, want := strings.Count(string(out), "\n"), strings.Count(src, "\n"); got != want {
				t.Errorf("got %d lines, want %d as before", got, want)
			}
			if _, again, _, err := parse("d/f.go", out); err != nil || len(again) != 1 {
				t.Errorf("the output is not valid Go: %v", err)
			}
		})
	}
}

func TestParseSeveral(t *testing.T) {
	src := "package p\nfunc f(a, b bool) {\nif a { //mutant:TestX deleted\n_ = a &&\nb //mutant:other/dir/TestY false\n}\n}\n"
	pkg, marks, out, err := parse("f.go", []byte(src))
	if err != nil || pkg != "p" || len(marks) != 2 {
		t.Fatalf("got %q %v, %v, want two marks in p", pkg, marks, err)
	}
	if m := marks[1]; m.pkg != "other/dir" || m.test != "TestY" || m.was != "b" {
		t.Errorf("got %+v, want b, TestY of other/dir", m)
	}
	want := "if !mutantOn(\"f.go:3\") { if a { //mutant:TestX deleted\n_ = a &&\n(!mutantOn(\"f.go:5\") && (b)) //mutant:other/dir/TestY false\n} }"
	if !strings.Contains(string(out), want) {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestBadMarks(t *testing.T) {
	for _, line := range []string{
		"_ = a //mutant:TestX",
		"_ = a //mutant:false",
		"_ = a //mutant:gap false",
		"//mutant:TestX false",
		"/**/ //mutant:TestX deleted",
	} {
		if _, marks, _, err := parse("f.go", []byte("package p\nfunc f(a bool) {\nif a {\n"+line+"\n}\n}\n")); err == nil {
			t.Errorf("%s: got %+v, want an error", line, marks)
		}
	}
}
