package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
)

const prefix = "//mutant:"

// mark is one mutant, as described by the comment at the end of its line.
type mark struct {
	id   string // FILE:LINE
	pkg  string // directory of the package that has the test
	test string
	with string // the expression that replaces the marked one; deleted: the statement is removed
	was  string // the marked code
}

const deleted = "deleted"

// edit is text to insert at an offset.
type edit struct {
	at   int
	text string
}

// parse returns the marks of a file and the file with all its mutants built in, each of them off unless mutantOn(id)
// returns otherwise. It keeps the lines, so that positions in errors and panics are right.
func parse(name string, src []byte) (pkg string, marks []mark, out []byte, err error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", nil, nil, err
	}
	var edits []edit
	for _, group := range f.Comments {
		for _, c := range group.List {
			text, isMark := strings.CutPrefix(c.Text, prefix)
			if !isMark {
				continue
			}
			line := files.Position(c.Pos()).Line
			m, err := newMark(fmt.Sprintf("%s:%d", name, line), path.Dir(name), text)
			if err != nil {
				return "", nil, nil, err
			}
			node := expression(files, f, line)
			if m.with == deleted {
				node = statement(files, f, line)
			}
			if node == nil {
				return "", nil, nil, fmt.Errorf("%s: nothing on this line to be mutated", m.id)
			}
			begin, end := files.Position(node.Pos()).Offset, files.Position(node.End()).Offset
			m.was = string(src[begin:end])
			before, after := m.around()
			edits = append(edits, edit{begin, before}, edit{end, after})
			marks = append(marks, m)
		}
	}
	return f.Name.Name, marks, apply(src, edits), nil
}

func newMark(id, dir, text string) (mark, error) {
	test, with, _ := strings.Cut(text, " ")
	m := mark{id: id, pkg: dir, test: test, with: strings.TrimSpace(with)}
	if at := strings.LastIndexByte(test, '/'); at >= 0 {
		m.pkg, m.test = test[:at], test[at+1:]
	}
	if !strings.HasPrefix(m.test, "Test") || m.with == "" {
		return mark{}, fmt.Errorf("%s: got %s%s, want %sTestX EXPRESSION or %[4]sTestX %s", id, prefix, text, prefix, deleted)
	}
	return m, nil
}

// around returns the code before and after the marked code that chooses between it and its mutant at run time. A mutant
// that is true or false doesn't evaluate the expression, others do.
func (m *mark) around() (before, after string) {
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

// expression returns the marked expression on this line: of those that begin and end on it, and aren't part of another
// such, the last. It is the condition of an if or a case, the value that is returned or assigned, or the operand of a
// condition over several lines.
func expression(files *token.FileSet, f *ast.File, line int) (found ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		e, isExpression := n.(ast.Expr)
		if _, isPair := n.(*ast.KeyValueExpr); !isExpression || isPair || lineOf(files, e.Pos()) != line || lineOf(files, e.End()) != line {
			return true
		}
		found = e
		return false
	})
	return found
}

// statement returns the statement that begins on this line: the last of several.
func statement(files *token.FileSet, f *ast.File, line int) (found ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		var list []ast.Stmt
		switch n := n.(type) {
		case *ast.BlockStmt:
			list = n.List
		case *ast.CaseClause:
			list = n.Body
		case *ast.CommClause:
			list = n.Body
		}
		for _, s := range list {
			if lineOf(files, s.Pos()) == line {
				found = s
			}
		}
		return found == nil
	})
	return found
}

func lineOf(files *token.FileSet, p token.Pos) int { return files.Position(p).Line }

func apply(src []byte, edits []edit) []byte {
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
