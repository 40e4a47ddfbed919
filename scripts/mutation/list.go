package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"path"
	"slices"
	"strings"
)

const listName = "mutants.txt"

// mutant is one line of a list.
type mutant struct {
	id       string // LIST:LINE
	pkg      string // directory of the package that has the test
	test     string
	function string // NAME, or TYPE.NAME of a method
	code     string // replaced code
	nth      int    // occurrence in the function, from 1; 0: the only occurrence
	with     string // replacement; deleted: the statement is removed
}

const deleted = "deleted"

// parseList returns the mutants of a list.
func parseList(name, list string) (mutants []mutant, err error) {
	function := ""
	for i, line := range strings.Split(list, "\n") {
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] != '\t':
			function = line
			continue
		}
		m := mutant{id: fmt.Sprintf("%s:%d", name, i+1), pkg: path.Dir(name), function: function}
		test, rest, _ := strings.Cut(line[1:], ": ")
		if at := strings.LastIndexByte(test, '/'); at >= 0 {
			m.pkg, test = test[:at], test[at+1:]
		}
		m.test = test
		m.code, m.with, _ = strings.Cut(rest, " -> ")
		if code, nth, several := strings.Cut(m.code, " #"); several {
			m.code, m.nth = code, int(nth[0]-'0')
		}
		if !strings.HasPrefix(test, "Test") || m.with == "" || function == "" {
			return nil, fmt.Errorf("%s: got %q, want a tab and TestX: CODE -> CODE below a function", m.id, line)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

// edit is text to insert at an offset.
type edit struct {
	at   int
	text string
}

// buildMutants returns the changed sources of a package, by name, with all mutants built in, and each mutant off unless
// mutantOn(id) is true. Lines are kept, so that positions in errors and panics are right.
func buildMutants(sources map[string][]byte, mutants []mutant) (pkg string, out map[string][]byte, err error) {
	edits := make(map[string][]edit)
	chosen, times := make([]int, len(mutants)), make([]int, len(mutants))
	for name, src := range sources {
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			for i, m := range mutants {
				if functionName(d) != m.function {
					continue
				}
				nodes := m.findNodes(files, src, d.Body)
				times[i] += len(nodes)
				node := m.pickNode(nodes)
				if node == nil {
					continue
				}
				chosen[i]++
				before, after := m.surroundingCode()
				begin, end := files.Position(node.Pos()).Offset, files.Position(node.End()).Offset
				edits[name] = append(edits[name], edit{begin, before}, edit{end, after})
			}
		}
		if len(edits[name]) > 0 {
			pkg = f.Name.Name
		}
	}
	for i, m := range mutants {
		if chosen[i] != 1 {
			return "", nil, fmt.Errorf("%s: %s has %d times: %s", m.id, m.function, times[i], m.code)
		}
	}
	out = make(map[string][]byte)
	for name, list := range edits {
		out[name] = applyEdits(sources[name], list)
		if _, err := parser.ParseFile(token.NewFileSet(), name, out[name], parser.SkipObjectResolution); err != nil {
			return "", nil, fmt.Errorf("two mutants in one place, or a statement deleted from the head of an if: %w", err)
		}
	}
	return pkg, out, nil
}

func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	return t.(*ast.Ident).Name + "." + f.Name.Name
}

// surroundingCode returns the code before and after the original, which chooses between original and mutant at run
// time. A mutant of true or false doesn't evaluate the original; all other mutants do.
func (m *mutant) surroundingCode() (before, after string) {
	switch m.with {
	case deleted:
		return fmt.Sprintf("if !mutantOn(%q) { ", m.id), " }"
	case "true":
		return fmt.Sprintf("(mutantOn(%q) || (", m.id), "))"
	case "false":
		return fmt.Sprintf("(!mutantOn(%q) && (", m.id), "))"
	default:
		return fmt.Sprintf("mutantOr(%q, ", m.id), fmt.Sprintf(", %s)", m.with)
	}
}

// findNodes returns the occurrences of the code in a function: statements for deleted, otherwise expressions. After a
// keyword in the mutant's code, only expressions behind the keyword count.
func (m *mutant) findNodes(files *token.FileSet, src []byte, body *ast.BlockStmt) (found []ast.Node) {
	keyword, code, want := "", m.code, ""
	for _, k := range []string{"if", "case", "return"} {
		if rest, ok := strings.CutPrefix(code, k+" "); ok {
			keyword, code = k, rest
		}
	}
	want = joinTokens([]byte(code))
	check := func(n ast.Node) {
		if n != nil && joinTokens(src[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset]) == want {
			found = append(found, n)
		}
	}
	assigned := make(map[ast.Expr]bool) // expressions that are no values
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				assigned[e] = true
			}
		case *ast.KeyValueExpr:
			assigned[n], assigned[n.Key] = true, true
		case *ast.SelectorExpr:
			assigned[n.Sel] = true
		case *ast.Field:
			for _, name := range n.Names {
				assigned[name] = true
			}
		}
		switch n := n.(type) {
		case *ast.IfStmt:
			if keyword == "if" {
				check(n.Cond)
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if keyword == "case" {
					check(e)
				}
			}
		case *ast.ReturnStmt:
			for _, e := range n.Results {
				if keyword == "return" {
					check(e)
				}
			}
		}
		if keyword != "" {
			return true
		}
		_, isStatement := n.(ast.Stmt)
		e, isExpression := n.(ast.Expr)
		if m.with == deleted && isStatement || m.with != deleted && isExpression && !assigned[e] {
			check(n)
		}
		return true
	})
	return found
}

// pickNode returns the node that the mutant replaces, or nil.
func (m *mutant) pickNode(nodes []ast.Node) ast.Node {
	switch {
	case m.nth == 0 && len(nodes) == 1:
		return nodes[0]
	case 0 < m.nth && m.nth <= len(nodes) && len(nodes) > 1:
		return nodes[m.nth-1]
	}
	return nil
}

// joinTokens returns code without blanks, line breaks and comments.
func joinTokens(code []byte) string {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile("", -1, len(code)), code, nil, 0)
	var out strings.Builder
	for {
		switch _, t, literal := s.Scan(); {
		case t == token.EOF:
			return strings.ReplaceAll(out.String(), ", )", ")")
		case t == token.SEMICOLON && literal == "\n":
		case t.IsLiteral():
			out.WriteString(literal + " ")
		default:
			out.WriteString(t.String() + " ")
		}
	}
}

func applyEdits(src []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
	var out bytes.Buffer
	done := 0
	for _, e := range edits {
		out.Write(src[done:e.at])
		out.WriteString(e.text)
		done = e.at
	}
	out.Write(src[done:])
	return out.Bytes()
}
