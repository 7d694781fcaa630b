// Command sandkeeper-agent is the program in a sandbox's image that journals an agent,
// and captures, restores and verifies the workspace. Its rule: it needs nothing of the
// image but a kernel, nothing of AWS but the URLs that it is given, and no secret on
// its command line.
//
// Exit status: 0 done, or under way where it was told to detach; 1 the job failed, and
// the line on stdout says why; 2 the command line or the job is not usable; 3 another
// process has the job, whose state the line on stdout tells; 4 ended by a signal.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/side"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// Exit statuses.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitClaimed    = 3
	exitTerminated = 4
)

// garbagePercent makes the collector run early: the large buffers of a capture are not
// the collector's, and what is left is small.
const garbagePercent = 40

// commands are the subcommands, each given the words behind its name.
var commands = map[string]func(args []string) int{
	"start":   start,
	"capture": foreground,
	"restore": foreground,
	"verify":  foreground,
	"setup":   foreground,
	"worker":  worker,
	"status":  status,
	"git":     gitCommand,
	"push":    push,
	"tools":   tools,
	"version": version,
	"run":     func([]string) int { return wrapper.Start(os.Stdin, os.Stdout) },
	"probe":   func([]string) int { return wrapper.Probe(os.Stdin, os.Stdout) },

	core.WrapperCommand: func([]string) int { return wrapper.Wrap() },
	wrapper.SideCommand: func([]string) int { return side.Main() },
}

const usage = `usage: sandkeeper-agent COMMAND [FLAGS]

  run      begin an agent under a journal wrapper: {run, nonce, argv | shell, dir, inputBytes}
           in one line on stdin, the agent's own input behind it; answers as the start script
  probe    tell whether an agent has ended: {run, nonce, logEnd}; answers as the probe script
  start    take a job from stdin, leave a worker behind, say: started | already | refused REASON
  capture  take a job of that kind from stdin and carry it out; so do restore, verify
           and setup
           -claims DIR   where jobs are claimed (default the journal directory)
           -detach       leave a worker behind, as start does
           -progress     a line on stderr that tells how far it is, also without a terminal
  status   tell how far a job is: -kind KIND -id ID [-claims DIR]
           -wait SECONDS  for its end
  push     measure a piece of a run's journal, or store it: {run, nonce, from, max} and, as
           measured, {size, sha256, url, headers} on stdin; [-dir DIR] of the journals
  tools    serve a run's tools by MCP on loopback: {url, host, bearer, tools, policy, root} on
           stdin; says {url, token, config} in one line, and serves until it is ended
  git      save DIR OUT | restore DIR IN: the state of the repositories below DIR, by hand
  version  print the version

A job is one JSON object on stdin. Results are one JSON line on stdout.
`

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		return complain("want a command")
	}
	if slices.Contains([]string{"help", "--help", "-help", "-h"}, args[0]) {
		io.WriteString(os.Stdout, usage)
		return exitDone
	}
	command, ok := commands[args[0]]
	if !ok {
		return complain(fmt.Sprintf("unknown command %q", args[0]))
	}
	switch args[0] {
	case "capture", "restore", "verify", "setup":
		return command(args)
	}
	return command(args[1:])
}

func complain(what string) int {
	fmt.Fprintf(os.Stderr, "sandkeeper-agent: %s\n", what)
	io.WriteString(os.Stderr, usage)
	return exitUsage
}

func version([]string) int {
	text := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		text = info.Main.Version
	}
	fmt.Println("sandkeeper-agent", text)
	return exitDone
}
