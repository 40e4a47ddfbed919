package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/check/nginxconfig"
	"github.com/gatehouse/gatehouse/check/rehearse"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/nginx"
)

type rehearseCmd struct {
	From     string   `required:"" placeholder:"FILE" help:"The old rules: a configuration as check reads it, or the rules only; - is standard input."`
	To       string   `required:"" placeholder:"FILE" help:"The new rules, likewise."`
	Logs     []string `arg:"" name:"log" placeholder:"FILE" help:"Access logs: lines of JSON with method, path and, if present, authority or host; Envoy's default format; nginx's combined format. - is standard input."`
	Host     string   `placeholder:"HOST" help:"Host of requests whose line has none. Default: none."`
	Listener string   `placeholder:"NAME" help:"Listener whose rules count, if there are several."`

	jsonFlag `embed:""`
}

// rehearsal is the output of rehearse.
type rehearsal struct {
	rehearse.LogStats
	Changes []rehearse.Change `json:"changes"`
}

// Run compares how the rules judge the requests of the logs, without Redis.
func (cmd *rehearseCmd) Run(c *console) error {
	inputs := append([]string{cmd.From, cmd.To}, cmd.Logs...)
	if first := slices.Index(inputs, "-"); first >= 0 && slices.Contains(inputs[first+1:], "-") {
		return usagef("only one file can be standard input")
	}
	from, err := c.readRules(cmd.From, cmd.Listener)
	if err != nil {
		return err
	}
	to, err := c.readRules(cmd.To, cmd.Listener)
	if err != nil {
		return err
	}
	comparison := rehearse.NewComparison(from, to)
	var all rehearsal
	first := "" // unreadable line
	for _, name := range cmd.Logs {
		read, err := cmd.addLog(c, comparison, name)
		if err != nil {
			return err
		}
		all.Lines += read.Lines
		if all.Unreadable += read.Unreadable; first == "" && read.First > 0 {
			first = fmt.Sprintf("%s:%d", name, read.First)
		}
	}
	if all.Lines > 0 && all.Unreadable == all.Lines {
		return usagef("%s: no line has a request in a known format: see gatehousectl rehearse --help", first)
	}
	all.Changes = comparison.Changes()
	if cmd.JSON {
		err = c.printJSON(all)
	} else {
		err = all.printChanges(c, first)
	}
	if err == nil && rehearse.Weakened(all.Changes) {
		err = weakenedError(cmd.To, cmd.From)
	}
	return err
}

// addLog adds a log to the comparison. On a terminal, addLog shows progress.
func (cmd *rehearseCmd) addLog(c *console, to *rehearse.Comparison, name string) (rehearse.LogStats, error) {
	log := c.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return rehearse.LogStats{}, err
		}
		defer file.Close()
		log = file
	}
	next := time.Now().Add(time.Second)
	progress := func(read *rehearse.LogStats) {
		if read.Lines%10000 == 0 && time.Now().After(next) {
			c.showProgress(fmt.Sprintf("%s: %d lines", name, read.Lines))
			next = time.Now().Add(time.Second)
		}
	}
	defer c.showProgress("")
	read, err := to.AddLog(log, cmd.Host, progress)
	if err != nil {
		err = fmt.Errorf("read %s: %w", name, err)
	}
	return read, err
}

func (all *rehearsal) printChanges(c *console, first string) error {
	if err := printChanges(c, all.Changes, true); err != nil {
		return err
	}
	changed := 0
	for _, change := range all.Changes {
		changed += change.Count
	}
	_, err := fmt.Fprintf(c.stdout, "%d of %d requests would be judged differently\n", changed, all.Lines-all.Unreadable)
	if first != "" {
		_, err = fmt.Fprintf(c.stdout, "%d lines are unreadable, the first is %s\n", all.Unreadable, first)
	}
	return err
}

// printChanges prints a table of changes. counts: also print numbers of requests, which only logs have.
func printChanges(c *console, changes []rehearse.Change, counts bool) error {
	if len(changes) == 0 {
		return nil
	}
	w := c.newTable()
	row := func(class, from, to, prefix, count, example string) {
		if counts {
			count += "\t"
		} else {
			count = ""
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s%s\n", class, from, to, prefix, count, example)
	}
	row("CHANGE", "OLD RULE", "NEW RULE", "PATH", "REQUESTS", "EXAMPLE")
	for i := range changes {
		change := &changes[i]
		row(change.Class.String(), change.From, change.To, printable(change.Prefix), fmt.Sprint(change.Count),
			printable(change.Example.Describe()))
	}
	return w.Flush()
}

// errWeakened is the error of new rules that admit requests that the old rules refuse.
var errWeakened = errors.New("lets in who is kept out by")

func weakenedError(to, from string) error { return fmt.Errorf("%s %w %s", to, errWeakened, from) }

// readRules returns the rules in a file, see parseRules.
func (c *console) readRules(source, listener string) (*policy.Config, error) {
	file, err := c.readInput(source, maxConfig, "rules")
	if err != nil {
		return nil, err
	}
	return parseRules(source, file, listener)
}

// parseRules returns the rules of an Envoy configuration, the rules that an nginx configuration names, or the rules of
// a rules file, rendered or not.
func parseRules(source string, file []byte, listener string) (*policy.Config, error) {
	if nginxconfig.Is(file) {
		config, err := nginxconfig.RulesOf(source, file)
		if err != nil {
			return nil, usagef("%s: %w", source, err)
		}
		return config, nil
	}
	if config, err := nginx.Parse(file); err == nil {
		return config, nil
	}
	if err := checkSyntax(source, file); err != nil {
		return nil, err
	}
	text, err := chooseRules(source, file, listener)
	if err != nil {
		return nil, err
	}
	config, err := policy.ParseBytes(text)
	if err != nil {
		return nil, usagef("%s: %w", source, err)
	}
	return config, nil
}
