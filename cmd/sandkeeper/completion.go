package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// completionCommand prints a script for a shell. The script asks this program for
// the words, so that they are always those of its own grammar: the libraries that do
// this for kong have had no release for years.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// scripts are the completion scripts by shell.
var scripts = map[string]string{
	// Readline takes an unquoted : = or @ for the end of a word: words are put together again
	// from the line up to the cursor, and it is given of an answer what stands for its own last
	// word, the second argument.
	"bash": `_sandkeeper() {
  local rest=${COMP_LINE:0:COMP_POINT} space piece word have i n=-1
  local -a words
  words=()
  COMPREPLY=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    space=${rest%%[![:space:]]*}
    rest=${rest#"$space"}
    piece=${COMP_WORDS[i]}
    if ((i == COMP_CWORD)); then piece=$rest; fi
    rest=${rest#"$piece"}
    if [[ -n $space || n -lt 0 ]]; then
      n=$((n + 1))
      words[n]=$piece
    else
      words[n]+=$piece
    fi
  done
  have=${words[n]%"$2"}
  while IFS= read -r word; do
    COMPREPLY+=("${word#"$have"}")
  done < <(sandkeeper __complete "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _sandkeeper sandkeeper
`,
	// As a file of fpath it is the function's first call, which is to complete as well.
	"zsh": `#compdef sandkeeper
_sandkeeper() {
  local -a words_found
  words_found=(${(f)"$(sandkeeper __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( ${#words_found} )); then compadd -a words_found; else _files; fi
}
compdef _sandkeeper sandkeeper
if [[ $funcstack[1] == _sandkeeper ]]; then _sandkeeper "$@"; fi
`,
	"fish": `function __sandkeeper_words
  set -l words (commandline -opc) (commandline -ct)
  set -l found (sandkeeper __complete $words[2..-1] 2>/dev/null)
  if set -q found[1]
    printf '%s\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c sandkeeper -f -a '(__sandkeeper_words)'
`,
}

// Run prints the script.
func (c *completionCommand) Run(out *console.Console) error {
	if _, err := io.WriteString(out.Out, scripts[c.Shell]); err != nil {
		return fmt.Errorf("print completion: %w", err)
	}
	return nil
}

// completeCommand answers a completion script: the words so far, the last of them
// not ended yet.
type completeCommand struct {
	Words []string `arg:"" optional:""`
}

// Run prints what the last word may become, one a line.
func (c *completeCommand) Run(ctx context.Context, out *console.Console) error {
	var grammar commands
	k, err := parser(ctx, &grammar, out)
	if err != nil {
		return err
	}
	last := ""
	if n := len(c.Words); n > 0 {
		last, c.Words = c.Words[n-1], c.Words[:n-1]
	}
	found, what := complete(k.Model.Node, c.Words, last)
	if what == "run" || what == "thread" {
		ctx, cancel := context.WithTimeout(ctx, knownWithin)
		defer cancel()
		if in := reached(ctx, k, &grammar.globals, c.Words); in != nil {
			found = append(found, in.known(ctx, what, last)...)
		}
	}
	for _, word := range found {
		fmt.Fprintln(out.Out, word)
	}
	return nil
}

// knownWithin bounds what a shell waits for names.
const knownWithin = 2 * time.Second

// plain are names that no shell takes for anything else: ids are chosen by hosts.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:=@+/-]*$`)

// reached is the installation that the words name; nil: none that can be asked.
func reached(ctx context.Context, k *kong.Kong, g *globals, words []string) *installation {
	line, err := kong.Trace(k, shielded(words))
	if err != nil || line.Reset() != nil || line.Resolve() != nil {
		return nil
	}
	_, _ = line.Apply() // as far as it can be read: the line is not whole yet
	in, err := open(ctx, g)
	if err != nil {
		return nil
	}
	return in
}

// known are the runs that have not ended or still owe, or their threads, whose names begin
// as last does. What cannot be listed has none.
func (in *installation) known(ctx context.Context, what, last string) []string {
	runs, _, err := in.indexed(ctx)
	if err != nil {
		return nil
	}
	var found []string
	for _, r := range runs {
		name := r.RunKey
		if what == "thread" {
			name.Run = core.RunID(r.Thread)
		}
		text := name.String()
		short, ok := strings.CutPrefix(text, untenanted)
		if ok && !strings.Contains(short, "/") && !strings.HasPrefix(last, untenanted) {
			text = short
		}
		if plain.MatchString(strings.TrimPrefix(text, untenanted)) && strings.HasPrefix(text, last) {
			found = append(found, text)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// complete walks the grammar along the words and returns those that may follow and
// begin as last does, and what is wanted there by name.
func complete(node *kong.Node, words []string, last string) (found []string, what string) {
	flags := flagsOf(nil, node)
	arguments, open := 0, (*kong.Flag)(nil) // a flag whose value is to come
	for _, word := range words {
		child := childOf(node, word)
		switch {
		case open != nil:
			open = nil
		case strings.HasPrefix(word, "-"):
			if f := flags[word]; f != nil && !f.IsBool() {
				open = f
			}
		case child != nil:
			node, arguments = child, 0
			flags = flagsOf(flags, node)
		default:
			arguments++
		}
	}
	name, _, given := strings.Cut(last, "=")
	switch f := flags[name]; {
	case open != nil:
		found, what = enumOf(open.Value), open.Name
	case given && f != nil: // its value is in the word
		for _, value := range enumOf(f.Value) {
			found = append(found, name+"="+value)
		}
	case strings.HasPrefix(last, "-") && !strings.HasPrefix(last, untenanted):
		found = slices.Collect(maps.Keys(flags))
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				found = append(found, child.Name)
			}
		}
		if n := len(node.Positional); n > 0 && (arguments < n || node.Positional[n-1].IsCumulative()) {
			next := node.Positional[min(arguments, n-1)]
			found, what = append(found, enumOf(next)...), next.Name
		}
	}
	if what == "standing" {
		found = append(found, standings...)
	}
	found = slices.DeleteFunc(found, func(word string) bool { return word == "" || !strings.HasPrefix(word, last) })
	slices.Sort(found)
	return slices.Compact(found), what
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// flagsOf adds a node's flags to those of the nodes before it.
func flagsOf(before map[string]*kong.Flag, node *kong.Node) map[string]*kong.Flag {
	flags := maps.Clone(before)
	if flags == nil {
		flags = map[string]*kong.Flag{}
	}
	for _, f := range node.Flags {
		if !f.Hidden {
			flags["--"+f.Name] = f
		}
	}
	return flags
}

func enumOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}
