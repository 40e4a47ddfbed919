package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/gatehouse/gatehouse/internal/version"
)

type manCmd struct{}

// Run prints the page, dated by $SOURCE_DATE_EPOCH (for reproducible packages) or today.
func (cmd *manCmd) Run(c *console) error {
	date := time.Now()
	if seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(seconds, 0)
	}
	m := &manual{}
	m.writePage(c.model, date)
	_, err := m.WriteTo(c.stdout)
	return err
}

// manual is a page in the macros of man(7).
type manual struct{ bytes.Buffer }

// escapeRoff returns text without roff requests and escapes.
func escapeRoff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// writeText writes a paragraph, a line for each sentence.
func (m *manual) writeText(text string) {
	for text != "" {
		sentence, rest, more := strings.Cut(text, ". ")
		if more {
			sentence += "."
		}
		fmt.Fprintln(m, escapeRoff(sentence))
		text = rest
	}
}

// writeItem writes a term and its description.
func (m *manual) writeItem(term, text string) {
	fmt.Fprintf(m, ".TP\n\\fB%s\\fR\n", escapeRoff(term))
	m.writeText(text)
}

func (m *manual) writeFlags(flags []*kong.Flag) {
	for _, flag := range flags {
		term := flag.String()
		if flag.Tag.Negatable != "" {
			term = "--[no-]" + flag.Name
		}
		m.writeItem(term, valueHelp(flag.Value))
	}
}

func (m *manual) writeCommand(node *kong.Node) {
	if len(node.Children) > 0 {
		m.writeFlags(node.Flags)
		for _, child := range node.Children {
			m.writeCommand(child)
		}
		return
	}
	m.writeItem(strings.TrimSuffix(node.Summary(), " [flags]"), node.Tag.Help)
	fmt.Fprintln(m, ".RS")
	for _, argument := range node.Positional {
		m.writeItem(argument.Summary(), argument.Help)
	}
	m.writeFlags(node.Flags)
	fmt.Fprintf(m, ".PP\n.EX\n%s\n.EE\n.RE\n", escapeRoff(node.Tag.Get("example")))
}

func (m *manual) writePage(app *kong.Application, date time.Time) {
	day := date.UTC().Format(time.DateOnly)
	fmt.Fprintf(m, ".TH GATEHOUSECTL 1 %s \"gatehousectl %s\" Gatehouse\n", day, version.Name())
	description := strings.TrimSuffix(app.Help, ".")
	fmt.Fprintf(m, ".SH NAME\ngatehousectl \\- %s\n", escapeRoff(strings.ToLower(description[:1])+description[1:]))
	fmt.Fprintln(m, ".SH SYNOPSIS\n\\fBgatehousectl\\fR \\fIcommand\\fR [\\fIargument\\fR ...] [\\fIflag\\fR ...]")
	fmt.Fprintln(m, ".SH DESCRIPTION")
	m.writeText("With --json, commands print one JSON object, or of a list or stream one object a line, with names in " +
		"snake_case. Errors go to standard error, and exit codes are the same. Text on a terminal is as wide as the " +
		"terminal; there are no colours, and without a terminal no escape sequences. " + app.Detail)
	for _, group := range groups {
		fmt.Fprintf(m, ".SH %s\n", strings.ToUpper(strings.TrimSuffix(group.Title, ":")))
		for _, node := range app.Children {
			if node.Group != nil && node.Group.Key == group.Key {
				m.writeCommand(node)
			}
		}
	}
	var redis, others []*kong.Flag
	for _, flag := range app.Flags {
		if isRedisFlag(flag) {
			redis = append(redis, flag)
		} else {
			others = append(others, flag)
		}
	}
	fmt.Fprintln(m, ".SH FLAGS OF ALL COMMANDS")
	m.writeFlags(others)
	fmt.Fprintln(m, ".SH FLAGS OF ALL COMMANDS THAT USE REDIS")
	m.writeFlags(redis)
	fmt.Fprintln(m, ".SH ENVIRONMENT")
	m.writeText("Variables of flags are named beside them; an empty one counts as none.")
	m.writeItem("TRACEPARENT", "The trace to which a write belongs, in W3C Trace Context's form.")
	m.writeItem("TERM", "dumb: no escape sequences.")
	fmt.Fprintln(m, ".SH EXIT STATUS")
	for _, exit := range exitCodes {
		m.writeItem(strconv.Itoa(exit.code), exit.meaning+".")
	}
}
