package policy

import (
	"path"
	"slices"
	"strings"
)

// maxDirs bounds in how many directories a command is held to be.
const maxDirs = 8

// Programs that go elsewhere, alone or for what they run.
var (
	changes = []string{"cd", "chdir", "pushd", "popd"}
	leaves  = []string{"su", "ssh", "chroot", "runuser", "nsenter", "bwrap", "proot", "firejail", "systemd-run", "start-stop-daemon"}
	loops   = []string{"for", "while", "until", "select", "function"}
)

// from is a path as it is taken in a directory.
func (d *decider) from(dir, name string) string {
	if name == "" || path.IsAbs(name) {
		return path.Join("/", dirOr(name, dir))
	}
	return dir + "/" + name
}

func dirOr(name, dir string) string {
	if name == "" {
		return dir
	}
	return name
}

// move notes where the commands of a script may come to run. Whether one that goes there
// succeeds, nobody can tell: what was possible before stays so.
func (d *decider) move(commands []command) {
	again := slices.ContainsFunc(commands, func(c command) bool {
		function := c.odd && len(c.words) == 1 && !assigns(c.words[0])
		return function || len(c.words) > 0 && slices.Contains(loops, c.words[0].String())
	})
	for _, c := range commands {
		for _, words := range c.disguised() {
			d.moveBy(words, again)
		}
		if slices.ContainsFunc(c.words, func(w word) bool { return strings.HasPrefix(w.String(), "CDPATH") }) {
			d.lost = true
		}
	}
}

// moveBy notes where a command goes; again says that it may go there more than once.
func (d *decider) moveBy(words []word, again bool) {
	if len(words) == 0 {
		return
	}
	name := path.Base(words[0].String())
	switch {
	case slices.Contains(leaves, name), name == "env" && slices.ContainsFunc(words, chdir), words[0].unknown() && !assigns(words[0]):
		d.lost = true
		return
	case !slices.Contains(changes, name):
		return
	}
	words = words[1:]
	for len(words) > 0 && slices.Contains([]string{"-L", "-P", "--"}, words[0].String()) {
		words = words[1:]
	}
	if len(words) != 1 || words[0].unknown() || len(words[0]) == 0 || strings.ContainsRune("-+", words[0][0]) {
		d.lost = true
		return
	}
	to := words[0].String()
	d.lost = d.lost || again && !path.IsAbs(to)
	for _, dir := range slices.Clone(d.dirs) {
		if next := d.from(dir, to); !slices.Contains(d.dirs, next) {
			d.dirs = append(d.dirs, next)
		}
	}
	d.lost = d.lost || len(d.dirs) > maxDirs
}

func chdir(w word) bool {
	text := w.String()
	return strings.HasPrefix(text, "--chdir") || strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "--") && strings.Contains(text, "C")
}

// writeAnywhere decides about a path in each directory that it may be taken in.
func (d *decider) writeAnywhere(name string) Decision {
	if name == "" || path.IsAbs(name) {
		return d.write(name)
	}
	if d.lost {
		return unless(d.Write.restricts(d.Default), "write %.100q: from a directory that cannot be told", name)
	}
	for _, dir := range d.dirs {
		if answer := d.write(d.from(dir, name)); !answer.Allow {
			return answer
		}
	}
	return allowed
}
