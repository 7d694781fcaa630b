package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Policy is what an agent may do, as a definition says it. The zero value allows all.
type Policy struct {
	// Commands are matched with the first words of a command, word by word: `git push`
	// is also `git push --force`. A star stands for any text within a word.
	Commands Rules `json:"commands,omitzero"`
	// Write are paths, absolute or below the workspace; a star stops at a slash, two do
	// not, and a path covers what is below it.
	Write Rules `json:"write,omitzero"`
	// Reach are names of hosts; `*.example.com` is every name below example.com.
	Reach Rules `json:"reach,omitzero"`
	// Default is for what no rule matches: allow or deny. Empty: deny where there is a
	// list of what is allowed, else allow.
	Default string `json:"default,omitempty"`
}

// Rules are globs. Deny wins.
type Rules struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// The values of [Policy.Default].
const (
	Allow = "allow"
	Deny  = "deny"
)

// Request is one use of a tool that an agent asks leave for.
type Request struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"` // a JSON object, as the tool would get it
	// Root is where relative paths begin, and relative rules; empty: the root of the
	// file system.
	Root string `json:"-"`
}

// Decision is the answer. Reason is one line for the agent.
type Decision struct {
	Allow  bool   `json:"allow"`
	Reason string `json:"reason"`
}

// Decide answers a request. Every command, path and host in it has to be allowed.
func Decide(p Policy, q Request) Decision {
	use, err := useOf(q)
	if err != nil {
		if p.free() {
			return allowed
		}
		return denied("cannot tell what is asked for: %v", err)
	}
	d := &decider{Policy: p, root: cmp.Or(q.Root, "/"), left: maxCommands}
	d.dirs = []string{d.from(d.root, use.dir)}
	if answer := d.all(use); !answer.Allow {
		return answer
	}
	if use.empty() && !use.reads && p.Default == Deny {
		return denied("tool %.80q: no rule allows it", q.Tool)
	}
	return allowed
}

var allowed = Decision{true, "allowed"}

func denied(format string, args ...any) Decision {
	return Decision{false, fmt.Sprintf(format, args...)}
}

// unless is for what cannot be told: allowed where nothing is restricted.
func unless(restricted bool, format string, args ...any) Decision {
	if restricted {
		return denied(format, args...)
	}
	return allowed
}

// decider is one answer on its way.
type decider struct {
	Policy
	root string
	left int      // commands that are still looked at
	dirs []string // in which a command may run
	lost bool     // there are others, and nobody can tell which
}

// maxCommands bounds what one request makes to be looked at, commands within commands
// included.
const maxCommands = 1000

func (d *decider) all(u use) Decision {
	d.move(u.commands)
	for _, c := range u.commands {
		if answer := d.command(c, false); !answer.Allow {
			return answer
		}
	}
	for _, name := range u.writes {
		if answer := d.writeAnywhere(name); !answer.Allow {
			return answer
		}
	}
	for _, host := range u.hosts {
		if answer := d.reach(host); !answer.Allow {
			return answer
		}
	}
	return allowed
}

// free reports whether nothing is restricted.
func (p Policy) free() bool {
	for _, r := range []Rules{p.Commands, p.Write, p.Reach} {
		if r.restricts(p.Default) {
			return false
		}
	}
	return true
}

// restricts reports whether anything can be denied by the rules.
func (r Rules) restricts(fallback string) bool { return len(r.Deny) > 0 || r.closed(fallback) }

// closed reports whether what no rule matches is denied.
func (r Rules) closed(fallback string) bool {
	return fallback == Deny || fallback == "" && len(r.Allow) > 0
}

// decide finds the rule for a subject. Both matchers are told a rule.
func (r Rules) decide(what, fallback string, denies, allows func(rule string) bool) Decision {
	if i := slices.IndexFunc(r.Deny, denies); i >= 0 {
		return denied("%.200s: denied by the rule %.80q", what, r.Deny[i])
	}
	if !r.closed(fallback) || slices.ContainsFunc(r.Allow, allows) {
		return allowed
	}
	return denied("%.200s: no rule allows it", what)
}

func (d *decider) write(name string) Decision {
	if name == "" || strings.ContainsRune(name, 0) {
		return unless(d.Write.restricts(d.Default), "write: want a path without a null byte")
	}
	if !path.IsAbs(name) {
		name = d.root + "/" + name
	}
	// What the words lead to and what they say may differ: a link is in between, and the
	// step up from it is not the one before it.
	said, place, root := path.Clean(name), resolve(name), resolve(d.root)
	covered := func(rule string) bool { return covers(rule, place, root) || covers(rule, place, d.root) }
	return d.Write.decide("write "+said, d.Default,
		func(rule string) bool { return covers(rule, said, d.root) || covered(rule) },
		func(rule string) bool {
			return covers(rule, said, d.root) && slices.ContainsFunc(d.Write.Allow, covered)
		})
}

func (d *decider) reach(host string) Decision {
	name, err := hostName(host)
	if err != nil {
		return unless(d.Reach.restricts(d.Default), "reach %.100q: %v", host, err)
	}
	match := func(rule string) bool { return hostMatches(rule, name) }
	return d.Reach.decide("reach "+name, d.Default, match, match)
}

// command decides about a command. Of one within a command that was allowed, only what
// is denied counts.
func (d *decider) command(c command, within bool) Decision {
	rules, fallback := d.Commands, d.Default
	if within {
		rules.Allow, fallback = nil, Allow
	}
	if d.left--; c.err == nil && d.left < 0 {
		c.err = errDepth
	}
	if c.err != nil {
		return unless(d.Commands.restricts(d.Default) || d.Write.restricts(d.Default), "run: %v", c.err)
	}
	answer := rules.decide("run "+c.text(), fallback,
		func(rule string) bool {
			return slices.ContainsFunc(c.disguised(), func(w []word) bool { return mayBegin(strings.Fields(rule), w) })
		},
		func(rule string) bool { return !c.odd && begins(strings.Fields(rule), c.words) })
	if !answer.Allow {
		return answer
	}
	return d.effects(c)
}

// effects decides about what a command that may run does beside: scripts, files and
// hosts.
func (d *decider) effects(c command) Decision {
	for _, script := range c.scripts() {
		if answer := d.script(script); !answer.Allow {
			return answer
		}
	}
	for _, name := range c.writes {
		if answer := d.redirected(name); !answer.Allow {
			return answer
		}
	}
	for _, host := range c.hosts() {
		if answer := d.reach(host); !answer.Allow {
			return answer
		}
	}
	return allowed
}

func (d *decider) script(script word) Decision {
	if script.unknown() {
		return unless(len(d.Commands.Deny) > 0, "run: a script that is not told")
	}
	commands := parse(script.String())
	d.move(commands)
	for _, c := range commands {
		if answer := d.command(c, true); !answer.Allow {
			return answer
		}
	}
	return allowed
}

func (d *decider) redirected(name word) Decision {
	switch {
	case name.unknown():
		return unless(d.Write.restricts(d.Default), "write: a file that is not told")
	case name.String() == "/dev/null":
		return allowed
	}
	return d.writeAnywhere(name.String())
}
