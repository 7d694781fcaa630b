package sim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/sim"
)

// once are the shortest scripts of what once broke an invariant, each with the seed
// that it was drawn from. A seed means another episode when the drawing changes; a
// script stays what it is.
var once = []struct {
	name   string
	seed   uint64 // zero: it was written by hand
	script sim.Script
}{{
	name: "a task that ECS does not know for a moment, long after it was condemned, is not gone (I6)",
	seed: 0x18eed620abcc8dd5,
	script: sim.Script{Config: sim.Config{Runs: 3, Threads: 2, Idle: true, Breaker: 50, Skew: 3 * time.Second, ListLag: 5 * time.Second}, Choices: []sim.Choice{
		{Op: "begin", ID: 9, N: 1},
		{Op: "go", ID: 9, N: 40},
		{Op: "wait", N: 190000},
		{Op: "sweep", ID: 21, Run: 1, N: 6},
		{Op: "go", ID: 21, N: 40},
		{Op: "deliver", ID: 42},
		{Op: "go", ID: 42, N: 7},
		{Op: "wait", N: 400000},
		{Op: "deliver", ID: 230},
		{Op: "blind", N: 60},
		{Op: "go", ID: 230, N: 5},
	}},
}, {
	name: "a hold that comes too late takes back no hold that was promised before (I13)",
	seed: 0xd4813e768805ffc3,
	script: sim.Script{Config: sim.Config{Runs: 1, Threads: 1, Lapses: true, Breaker: 50}, Choices: []sim.Choice{
		{Op: "begin", ID: 21},
		{Op: "go", ID: 21, N: 40},
		{Op: "wait", N: 190000},
		{Op: "sweep", ID: 78, N: 1},
		{Op: "go", ID: 78, N: 40},
		{Op: "hold", ID: 92, N: 300},
		{Op: "go", ID: 92, N: 40},
		{Op: "deliver", ID: 119},
		{Op: "go", ID: 119, N: 4},
		{Op: "hold", ID: 120, N: 60},
		{Op: "go", ID: 120, N: 40},
		{Op: "deliver", ID: 102},
		{Op: "go", ID: 102, N: 40},
		{Op: "deliver", ID: 149},
		{Op: "go", ID: 149, N: 3},
	}},
}, {
	name: "an agent does not begin under the hands of a sweep that saw none (I1)",
	seed: 0x93ff47fe8bc970af,
	script: sim.Script{Config: sim.Config{Runs: 8, Threads: 1, Breaker: 50}, Choices: []sim.Choice{
		{Op: "begin", ID: 3},
		{Op: "go", ID: 3, N: 6},
		{Op: "detach", ID: 15},
		{Op: "go", ID: 15, N: 1},
		{Op: "sweep", ID: 17, N: 1},
		{Op: "go", ID: 17, N: 40},
		{Op: "wait", N: 130000},
		{Op: "sweep", ID: 52, N: 1},
		{Op: "go", ID: 52, N: 5},
		{Op: "begin", ID: 54},
		{Op: "go", ID: 54, N: 40},
		{Op: "go", ID: 52, N: 40},
	}},
}, {
	name: "a claim of a detached run does not take one that is paused since then (I8)",
	seed: 0xe6d5c63adc8c3c1b,
	script: sim.Script{Config: sim.Config{Runs: 8, Threads: 6, Breaker: 50}, Choices: []sim.Choice{
		{Op: "begin", ID: 3, Run: 1},
		{Op: "go", ID: 3, N: 40},
		{Op: "detach", ID: 18, Run: 1},
		{Op: "interrupt", ID: 27, Run: 1}, // it stands still before its call
		{Op: "go", ID: 18, N: 40},
		{Op: "wait", N: 60000},
		{Op: "sweep", ID: 19, Run: 1, N: 1},
		{Op: "go", ID: 19, N: 4},
		{Op: "go", ID: 27, N: 1},
		{Op: "go", ID: 19, N: 40},
	}},
}, {
	name: "a hold that comes too late takes back no equal one that was promised (I13)",
	seed: 0xe640aa9e773f72a2,
	script: sim.Script{Config: sim.Config{Runs: 3, Threads: 3, Breaker: 3}, Choices: []sim.Choice{
		{Op: "begin", ID: 105, Run: 2},
		{Op: "go", ID: 105, N: 40},
		{Op: "interrupt", ID: 151, Run: 2},
		{Op: "go", ID: 151, N: 40},
		{Op: "wait", N: 600000},
		{Op: "sweep", ID: 361, Run: 2},
		{Op: "go", ID: 361, N: 40},
		{Op: "deliver", ID: 393, Run: 2},
		{Op: "go", ID: 393, N: 4}, // up to its mark
		{Op: "hold", ID: 396, Run: 2, N: 900},
		{Op: "go", ID: 396, N: 1},
		{Op: "hold", ID: 400, Run: 2, N: 900},
		{Op: "go", ID: 400, N: 40},
		{Op: "go", ID: 393, N: 1},
		{Op: "go", ID: 396, N: 40},
	}},
}, {
	name: "an end that fails makes no missing task of one that ECS has known since (I2)",
	seed: 0x5d453abe3f0d03b2,
	script: sim.Script{Config: sim.Config{Runs: 3, Threads: 1, Breaker: 50}, Choices: []sim.Choice{
		{Op: "begin", ID: 10, Run: 2},
		{Op: "go", ID: 10, N: 40},
		{Op: "detach", ID: 15, Run: 2},
		{Op: "go", ID: 15, N: 1},
		{Op: "blind", N: 60},
		{Op: "sweep", ID: 46, Run: 2, N: 1},
		{Op: "go", ID: 46, N: 40},
		{Op: "wait", N: 300000},
		{Op: "mute", N: 30},
		{Op: "kill", ID: 112, Run: 2},
		{Op: "go", ID: 112, N: 2},
		{Op: "sweep", ID: 181},
		{Op: "go", ID: 181, N: 40},
		{Op: "wait", N: 60000},
		{Op: "blind", N: 10},
		{Op: "sweep", ID: 211, Run: 2, N: 1},
		{Op: "go", ID: 211, N: 40},
	}},
}, {
	name: "a host does not go on under the epoch of a sweep that has claimed its run (I3)",
	seed: 0xec14b04c49d3aa06,
	script: sim.Script{Config: sim.Config{Runs: 8, Threads: 2, Retries: true, Breaker: 50}, Choices: []sim.Choice{
		{Op: "begin", ID: 685, Run: 5},
		{Op: "go", ID: 685, N: 4},
		{Op: "detach", ID: 701, Run: 5},
		{Op: "go", ID: 701, N: 2},
		{Op: "go", ID: 685, N: 2}, // its task is launched
		{Op: "wait", N: 60000},
		{Op: "sweep", ID: 703, Run: 5, N: 1},
		{Op: "go", ID: 703, N: 5}, // its claim
		{Op: "go", ID: 685, N: 40},
		{Op: "go", ID: 703, N: 40},
	}},
}, {
	name: "a run that its host gives up gets no sandbox any more from that host's own start (I15)",
	seed: 0x19150bb5cefda55c,
	script: sim.Script{Config: sim.Config{Runs: 1, Threads: 1, Breaker: 50, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true}, Choices: []sim.Choice{
		{Op: "begin", ID: 1},
		{Op: "go", ID: 1, N: 8}, // up to its instance's name
		{Op: "fail", ID: 2},
		{Op: "go", ID: 2, N: 2}, // the end is decided, of a run without a sandbox
		{Op: "go", ID: 1, N: 40},
		{Op: "go", ID: 2, N: 40},
	}},
}, {
	name: "a run that named the task of another's adoption, and came no further, was never launched (I6)",
	script: sim.Script{Config: sim.Config{Runs: 6, Threads: 1, Breaker: 50, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true, Adopts: true}, Choices: []sim.Choice{
		{Op: "adopt", ID: 2, Run: 1},
		{Op: "go", ID: 2, N: 6}, // up to the instance's name
		{Op: "adopt", ID: 3, Run: 2, N: 2},
		{Op: "go", ID: 3, N: 40},
	}},
}, {
	name: "a run that read that nobody had adopted its task before another did was never launched (I6)",
	script: sim.Script{Config: sim.Config{Runs: 6, Threads: 1, Breaker: 50, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true, Adopts: true}, Choices: []sim.Choice{
		{Op: "adopt", ID: 2, Run: 1},
		{Op: "go", ID: 2, N: 5},
		{Op: "adopt", ID: 3, Run: 2, N: 2},
		{Op: "go", ID: 3, N: 40},
		{Op: "go", ID: 2, N: 40},
	}},
}, {
	name: "a save of which it is not known that its agent began does not take the next step for its own (I5)",
	seed: 0x74b4349aaf2b415b,
	script: sim.Script{Config: sim.Config{Runs: 3, Threads: 3, Breaker: 50, Checkpoint: core.CheckpointFinished, Keeper: true, Session: true}, Choices: []sim.Choice{
		{Op: "begin", ID: 32, Run: 2},
		{Op: "go", ID: 32, N: 40},
		{Op: "detach", ID: 153, Run: 2},
		{Op: "go", ID: 153, N: 40},
		{Op: "save", ID: 157, Run: 2, N: 9},
		{Op: "go", ID: 157, To: "hold exec"},
		{Op: "wait", N: 260000}, // past its lease
		{Op: "save", ID: 167, Run: 2, N: 10},
		{Op: "go", ID: 167, N: 40},
		{Op: "capture", ID: 168, Run: 2},
		{Op: "go", ID: 168, N: 40},
		{Op: "go", ID: 157, N: 40, Fault: mem.AnswerLost},
	}},
}, {
	name: "who writes a hold once more keeps nobody from writing another meanwhile",
	script: sim.Script{Config: sim.Config{Runs: 2, Threads: 2, Retries: true, Breaker: 50, Checkpoint: core.CheckpointFinished, Keeper: true, Session: true}, Choices: []sim.Choice{
		{Op: "begin", ID: 1},
		{Op: "go", ID: 1, N: 40},
		{Op: "begin", ID: 2, Run: 1},
		{Op: "go", ID: 2, N: 40},
		{Op: "save", ID: 3},
		{Op: "go", ID: 3, To: "hold exec"},
		{Op: "go", ID: 3, N: 1, Fault: mem.NotLanded},
		{Op: "save", ID: 4, Run: 1},
		{Op: "go", ID: 4, N: 40},
		{Op: "go", ID: 3, N: 40},
	}},
}, {
	name: "who follows a run in a session asks for its files in no second one, once another call has left the run",
	seed: 0x6bc5545cfc8f595,
	script: sim.Script{Config: sim.Config{
		Runs: 8, Threads: 2, Idle: true, Breaker: 1, Skew: time.Second, ListLag: 5 * time.Second, Checkpoint: core.CheckpointFinished,
		Keeper: true, Session: true, Hooks: 1, Copies: core.SnapshotsAfterRun, Spool: true, Follows: true, Caps: true,
	}, Choices: []sim.Choice{
		{Op: "tenant cap", N: 300},
		{Op: "begin", ID: 4},
		{Op: "go", ID: 4, N: 40},
		{Op: "follow", ID: 138, N: 4}, // and then leaves
		{Op: "go", ID: 138, N: 40},
		{Op: "wait", N: 60000},
		{Op: "follow", ID: 141, N: 6}, // the same host in another process
		{Op: "go", ID: 141, N: 40},
		{Op: "go", ID: 138, N: 40},
		{Op: "go", ID: 141, N: 40},
	}},
}, {
	name: "a sealed run ends with what its agent wrote, although ECS has forgotten the task that its host had started",
	seed: 0x1b039537c47d2d09,
	script: sim.Script{Config: sim.Config{
		Runs: 6, Threads: 3, Release: true, Breaker: 1, Skew: time.Second, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true,
		SetUp: true, Hooks: 1, Spool: true, Adopts: true,
	}, Choices: []sim.Choice{
		{Op: "adopt", ID: 19},
		{Op: "write", N: 1},
		{Op: "exit", N: 3},
		{Op: "adopt", ID: 202},
		{Op: "go", ID: 202, N: 40},
		{Op: "finish", ID: 236},
		{Op: "go", ID: 236, N: 3},
		{Op: "forget"},
	}},
}, {
	name: "a sandbox that is not the run's spools nothing for it",
	script: sim.Script{Config: sim.Config{
		Runs: 7, Threads: 1, Idle: true, Release: true, Breaker: 50, ListLag: time.Minute, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true,
		SetUp: true, Spool: true, Adopts: true, Follows: true, Quota: 2,
	}, Choices: []sim.Choice{
		{Op: "adopt", ID: 141, Run: 3, N: 1},
		{Op: "adopt", ID: 146, Run: 5, N: 3},
		{Op: "go", ID: 146, N: 40},
		{Op: "write", Run: 5, N: 50},
		{Op: "spool", Run: 5},
	}},
}, {
	name: "a host goes on for a paused run although the breaker has tripped",
	seed: 0x89805209c3bb5203,
	script: sim.Script{Config: sim.Config{
		Runs: 8, Threads: 2, Idle: true, Lapses: true, Release: true, Breaker: 1, ListLag: 5 * time.Second, Checkpoint: core.CheckpointAlways,
		Keeper: true, Session: true, SetUp: true, Hooks: 1, Copies: core.SnapshotsAfterRun, Spool: true, Adopts: true, Quota: 2, Spokes: true, Redrives: true,
	}, Choices: []sim.Choice{
		{Op: "continue", ID: 35, Run: 1},
		{Op: "go", ID: 35, N: 4},
		{Op: "begin", ID: 82, Run: 2},
		{Op: "go", ID: 82, N: 40},
		{Op: "detach", ID: 93, Run: 2},
		{Op: "go", ID: 93, N: 40},
		{Op: "until", N: 2},
		{Op: "detach", ID: 106, Run: 1},
		{Op: "go", ID: 106, N: 40},
		{Op: "sweep", ID: 112, Run: 2},
		{Op: "go", ID: 112, N: 40},
		{Op: "continue", ID: 135},
		{Op: "go", ID: 135, N: 4},
		{Op: "interrupt", ID: 164},
		{Op: "go", ID: 164, N: 40},
		{Op: "continue", ID: 192, Run: 6},
		{Op: "go", ID: 192, N: 40},
	}},
}}

// TestWhatOnceBroke carries every such script out again.
func TestWhatOnceBroke(t *testing.T) {
	for _, c := range once {
		t.Run(c.name, func(t *testing.T) {
			if r := sim.Replay(t, c.script, true); len(r.Wrongs) > 0 {
				t.Errorf("script of %#x breaks: %s\nwhat happens:\n  %s", c.seed, strings.Join(r.Wrongs, "\n"), strings.Join(r.Trace, "\n  "))
			}
		})
	}
}

// TestTwoAdoptionsOfATask: of two that adopt one task, each stopped after any of its calls
// or going on later, in either order, one has it at most, and the end of one harms no other.
// The agent in the task is the first one's.
func TestTwoAdoptionsOfATask(t *testing.T) {
	config := sim.Config{Runs: 6, Threads: 1, Breaker: 50, Checkpoint: core.CheckpointAlways, Keeper: true, Session: true, Adopts: true}
	const mine, other = 2, 3
	met := map[string]int{}
	try := func(what string, choices ...sim.Choice) {
		s := sim.Script{Config: config, Choices: choices}
		r := sim.Replay(t, s, false)
		for what, n := range r.Met {
			met[what] += n
		}
		if len(r.Wrongs) > 0 {
			again := sim.Replay(t, s, true)
			t.Fatalf("%s: %s\n%s\nwhat happens:\n  %s", what, strings.Join(r.Wrongs, "\n"), s, strings.Join(again.Trace, "\n  "))
		}
	}
	on := func(id int) sim.Choice { return sim.Choice{Op: sim.OpGo, ID: id, N: 40} }
	for who, second := range map[string]sim.Choice{
		"another tenant's run":         {Op: sim.OpAdopt, ID: other, Run: 2, N: 2},
		"a run of the thread":          {Op: sim.OpAdopt, ID: other, Run: 3, N: 2},
		"a run of another thread":      {Op: sim.OpAdopt, ID: other, Run: 4, N: 2},
		"the run's other host":         {Op: sim.OpAdopt, ID: other, Run: 1, N: 1},
		"the host in another call too": {Op: sim.OpAdopt, ID: other, Run: 1},
	} {
		for n := range 12 {
			for _, m := range []int{0, 1, 3, 5, 6, 7, 8, 9, 40} {
				first := sim.Choice{Op: sim.OpAdopt, ID: mine, Run: 1}
				cut := []sim.Choice{first, {Op: sim.OpGo, ID: mine, N: n}, second, {Op: sim.OpGo, ID: other, N: m}}
				turned := []sim.Choice{first, second, cut[3], cut[1]}
				what := fmt.Sprintf("%s, cut after %d and %d calls", who, n, m)
				try(what, cut...)
				try(what+"; the first goes on", slices.Concat(cut, []sim.Choice{on(mine), on(other)})...)
				try(what+"; the second goes on", slices.Concat(cut, []sim.Choice{on(other), on(mine)})...)
				try(what+" of which the second's come first", slices.Concat(turned, []sim.Choice{on(mine), on(other)})...)
			}
			for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost} {
				c := []sim.Choice{{Op: sim.OpAdopt, ID: mine, Run: 1}, {Op: sim.OpGo, ID: mine, N: n}, {Op: sim.OpGo, ID: mine, N: 1, Fault: fault}, second}
				what := fmt.Sprintf("%s, call %d fails: %s", who, n+1, fault)
				try(what, slices.Concat(c, []sim.Choice{on(other), on(mine)})...)
				try(what+", and goes on", slices.Concat(c, []sim.Choice{on(mine), on(other)})...)
			}
		}
	}
	for _, what := range []string{"adopted", "adopt refused: task-taken", "adopt refused: attached-elsewhere"} {
		if met[what] == 0 {
			t.Errorf("it never happens: %s; %v", what, met)
		}
	}
}
