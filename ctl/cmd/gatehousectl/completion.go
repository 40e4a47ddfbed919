package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completeCommand is a hidden command that the completion scripts run with the words of the command line up to the
// cursor. Each line of output is a candidate, a tab and the candidate's description, or a constant from below.
const completeCommand = "__complete"

const (
	completeFiles       = ":file"
	completeDirectories = ":dir"
)

var completions = map[string]string{
	// bash also splits words at = and :, see rejoinWords.
	"bash": `# bash completion of gatehousectl
_gatehousectl() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
    :file | :dir)
      compopt -o filenames
      mapfile -t COMPREPLY < <(if [[ $line == :dir ]]; then compgen -d -- "$2"; else compgen -f -- "$2"; fi)
      ;;
    *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _gatehousectl gatehousectl
`,
	"zsh": `#compdef gatehousectl
_gatehousectl() {
  local line
  local -a lines values
  lines=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ $PREFIX == --*=* ]] && compset -P 1 '*='
  case $lines[1] in
    :file) _files ;;
    :dir) _files -/ ;;
    ?*)
      for line in $lines; do
        values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
      done
      _describe gatehousectl values
      ;;
  esac
}
if [[ $funcstack[1] == _gatehousectl ]]; then
  _gatehousectl "$@"
else
  compdef _gatehousectl gatehousectl
fi
`,
	"fish": `# fish completion of gatehousectl
function __gatehousectl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l flag (string match -r -- '^--[^=]+=' "$current")
    for line in ($words[1] __complete $words[2..] "$current" 2>/dev/null)
        switch $line
            case :file
                printf '%s\n' "$flag"(__fish_complete_path (string replace -- "$flag" '' "$current"))
            case :dir
                printf '%s\n' "$flag"(__fish_complete_directories (string replace -- "$flag" '' "$current"))
            case '*'
                printf '%s\n' "$flag$line"
        end
    end
end
complete -c gatehousectl -f -a '(__gatehousectl_complete)'
`,
}

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script.
func (cmd *completionCmd) Run(c *console) error {
	_, err := io.WriteString(c.stdout, completions[cmd.Shell])
	return err
}

// printCompletions prints the candidates for the last of words. words end at the cursor; the last word may be empty.
func printCompletions(w io.Writer, app *kong.Node, words []string) {
	words = rejoinWords(words)
	if len(words) == 0 {
		words = []string{""}
	}
	last := len(words) - 1
	node, flags := app, slices.Clone(app.Flags)
	arguments := 0
	var open *kong.Flag // the next word is the flag's value
	for _, word := range words[:last] {
		switch name, _, whole := strings.Cut(strings.TrimPrefix(word, "--"), "="); {
		case open != nil:
			open = nil
		case strings.HasPrefix(word, "--"):
			if flag := findFlag(flags, name); flag != nil && !whole && !flag.IsBool() {
				open = flag
			}
		case strings.HasPrefix(word, "-") && word != "-":
		default:
			if i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word }); i >= 0 {
				node = node.Children[i]
				flags = append(flags, node.Flags...)
			} else if !node.Leaf() {
				return // no command
			} else {
				arguments++
			}
		}
	}
	word := words[last]
	name, value, whole := strings.Cut(strings.TrimPrefix(word, "--"), "=")
	switch {
	case open != nil:
		completeValue(w, open.Value, open.PlaceHolder, word)
	case strings.HasPrefix(word, "--") && whole:
		if flag := findFlag(flags, name); flag != nil {
			completeValue(w, flag.Value, flag.PlaceHolder, value)
		}
	case strings.HasPrefix(word, "-"):
		for _, flag := range flags {
			printCandidate(w, "--"+flag.Name, flag.Help, word)
			if flag.Tag.Negatable != "" {
				printCandidate(w, "--no-"+flag.Name, flag.Help, word)
			}
		}
	case len(node.Children) > 0:
		for _, child := range node.Children {
			printCandidate(w, child.Name, child.Help, word)
		}
	case len(node.Positional) > 0:
		argument := node.Positional[min(arguments, len(node.Positional)-1)]
		if arguments < len(node.Positional) || argument.IsCumulative() {
			completeValue(w, argument, argument.Tag.PlaceHolder, word)
		}
	}
}

func findFlag(flags []*kong.Flag, name string) *kong.Flag {
	for _, flag := range flags {
		if flag.Name == name {
			return flag
		}
	}
	return nil
}

// completeValue prints the values of an enum. For placeholders FILE and DIR, the shell completes paths.
func completeValue(w io.Writer, v *kong.Value, placeholder, word string) {
	switch {
	case v.Enum != "":
		for _, value := range v.EnumSlice() {
			printCandidate(w, value, "", word)
		}
	case placeholder == "FILE":
		fmt.Fprintln(w, completeFiles)
	case placeholder == "DIR":
		fmt.Fprintln(w, completeDirectories)
	}
}

// printCandidate prints text if text begins with word.
func printCandidate(w io.Writer, text, help, word string) {
	if strings.HasPrefix(text, word) {
		help, _, _ = strings.Cut(help, ". ")
		fmt.Fprintf(w, "%s\t%s\n", text, strings.TrimSuffix(help, "."))
	}
}

// rejoinWords joins words that bash has split at = and :. The value of --flag=value stays a word of its own, because
// bash replaces only the value.
func rejoinWords(words []string) []string {
	var out []string
	joined := false // the next word continues the last word
	for i, word := range words {
		separator := i > 0 && word != "" && strings.Trim(word, "=:") == ""
		before := len(out) - 1
		switch {
		case separator && word == "=" && strings.HasPrefix(out[before], "--"):
			if i == len(words)-1 {
				out = append(out, "")
			}
		case separator:
			out[before] += word
			joined = true
		case joined:
			out[before] += word
			joined = false
		default:
			out = append(out, word)
		}
	}
	return out
}
