// Links checks that every link in the Markdown files of this repository leads to a file that exists and, if it names a
// heading, to a heading that exists. It also checks the names of Markdown files in other sources, such as comments. It
// reads the files that git tracks, and needs no network.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	mention = regexp.MustCompile(`(?:\.\./)*[\w-][\w./-]*\.md\b`)
	ours    = regexp.MustCompile(`https://github\.com/gatehouse/gatehouse/blob/[^/\s]+/`) // a file of any version
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	code    = regexp.MustCompile("(?ms)^```.*?^```|^    .*?$|`[^`\n]*`")
)

func main() {
	list, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "links: git ls-files:", err)
		os.Exit(1)
	}
	problems := check(os.ReadFile, strings.Fields(string(list)))
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

// check returns one line for each broken link in names, which are paths from the root of the repository.
func check(read func(string) ([]byte, error), names []string) []string {
	var problems []string
	for _, name := range names {
		text, err := read(name)
		if err != nil {
			continue // a symbolic link to a directory, or a file that is deleted but not committed
		}
		broken := brokenMentions
		switch ext := path.Ext(name); {
		case ext == ".md":
			broken = brokenLinks
		case strings.HasSuffix(name, "_test.go"):
			continue // it may name files that it creates
		case ext == ".go", ext == ".sh", ext == ".yaml", ext == ".tpl", ext == ".py", path.Base(name) == "Makefile":
		default:
			continue
		}
		for _, target := range broken(read, name, string(text)) {
			problems = append(problems, fmt.Sprintf("%s: %s does not exist", name, target))
		}
	}
	return problems
}

// brokenLinks returns the targets of links in the Markdown file name that do not exist.
func brokenLinks(read func(string) ([]byte, error), name, text string) []string {
	var broken []string
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, ":") {
			continue // another site
		}
		page := text
		if target != "" {
			file := path.Join(path.Dir(name), target)
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				continue
			}
			b, err := read(file)
			if err != nil {
				broken = append(broken, m[1])
				continue
			}
			page = string(b)
		}
		if anchor != "" && !anchors(page)[anchor] {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// brokenMentions returns the names of Markdown files in text that exist neither from the root of the repository nor
// from the directory of the file name.
func brokenMentions(read func(string) ([]byte, error), name, text string) []string {
	var broken []string
	for _, m := range mention.FindAllString(ours.ReplaceAllString(text, ""), -1) {
		_, fromRoot := read(path.Clean(m))
		_, fromHere := read(path.Join(path.Dir(name), m))
		if fromRoot != nil && fromHere != nil {
			broken = append(broken, m)
		}
	}
	return broken
}

// anchors returns the anchors that GitHub gives the headings of page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		text := link.ReplaceAllString(m[1], "")
		text = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), "")
		anchor := strings.ReplaceAll(text, " ", "-")
		for i := 1; found[anchor]; i++ {
			anchor = fmt.Sprintf("%s-%d", strings.ReplaceAll(text, " ", "-"), i)
		}
		found[anchor] = true
	}
	return found
}
