package ecsexec_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// nonce is this process' own, as runs are told apart in one process table.
var nonce = core.NewJournalNonce()

func (b *sandbox) prober() *core.JournalProber {
	return &core.JournalProber{Exec: b.exec, Format: core.DefaultJournal, Limits: core.DefaultLimits}
}

// agent starts a shell text as a run's agent.
func (b *sandbox) agent(id core.RunID, text string) {
	b.Helper()
	script, err := core.DefaultJournal.StartScript(core.JournalStart{Run: id, Nonce: nonce, Shell: text})
	if err != nil {
		b.Fatal(err)
	}
	out, err := b.exec.Exec(b.Context(), b.target, script, nil)
	if err != nil {
		b.Fatal(err)
	}
	if s, err := core.ParseStart(out.Stdout); err != nil || s.Already {
		b.Fatalf("start %.40q: %+v, %v", id, s, err)
	}
}

func (b *sandbox) write(name, text string) {
	b.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

func (b *sandbox) probe(id core.RunID) core.ProbeReply {
	key := core.RunKey{Tenant: "-", Run: id}
	return b.prober().Probe(b.Context(), 0, []core.ProbeRequest{{RunKey: key, Target: b.target, Nonce: nonce}})[0]
}

// every is all bytes, many times over, with line ends that a terminal would change.
func every() []byte {
	out := make([]byte, 0, 40_000)
	for i := range 20_000 {
		out = append(out, byte(i), byte(i*31>>8))
	}
	return out
}

func TestHostileRunsOverTheWire(t *testing.T) {
	b := newSandbox(t, scene{})
	want := every()
	b.write("every", string(want))
	for _, id := range []core.RunID{
		`'"$(touch pwned)` + "`touch pwned`;touch pwned\\", "{{ssm:x}}\n{{ y }}", "😀 é\u202e\r\n\x00\x03", core.RunID(strings.Repeat("é'\n", 333)),
	} {
		b.agent(id, "cat "+b.path("every")+"; exit 9")
		var reply core.ProbeReply
		b.until("the agent has ended", func() bool { reply = b.probe(id); return reply.State != core.ProbeProducing })
		if reply.State != core.ProbeFinished || reply.Exit != 9 || !reply.Whole || !bytes.Equal(reply.Rest, want) {
			t.Errorf("probe of %.40q: %s, exit %d, %d bytes (%s); want exit 9 and %d bytes", id, reply.State, reply.Exit, len(reply.Rest), reply.Reason, len(want))
		}
		key := core.RunKey{Tenant: "-", Run: id}
		page, err := b.prober().Page(t.Context(), core.PageRequest{RunKey: key, Target: b.target, Nonce: nonce, From: 100, Last: want[:100]})
		if err != nil || page.Exit == nil || *page.Exit != 9 || !bytes.Equal(page.Data, want[100:]) {
			t.Errorf("page of %.40q: %d bytes, %v; want %d", id, len(page.Data), err, len(want)-100)
		}
		if _, err := b.prober().Page(t.Context(), core.PageRequest{RunKey: key, Target: b.target, Nonce: nonce, From: 100, Last: []byte("something else")}); err == nil {
			t.Errorf("page of %.40q behind another log: want it refused", id)
		}
		if done, err := b.prober().Terminate(t.Context(), core.TerminateRequest{RunKey: key, Target: b.target, Nonce: nonce}); err != nil || !done.Started {
			t.Errorf("terminate %.40q: %+v, %v", id, done, err)
		}
	}
	if b.exists("pwned") {
		t.Error("an id was run")
	}
}

func TestNoiseOnTheTerminalNeverChangesAnAnswer(t *testing.T) {
	b := newSandbox(t, scene{})
	for i, noise := range []string{"QUJDREVGR0g=", "\n", "\r\n0.\n", strings.Repeat("A", 76) + "\n", "\x03\x04\x1a", " begin.\n", " 0.\n"} {
		b.write("noise", noise)
		script := `( i=0; while [ $i -lt 40 ]; do cat noise >/dev/tty; i=$((i + 1)); done ) & head -c 30000 /dev/zero; wait; exit 3`
		got, err := b.exec.Exec(t.Context(), b.target, script, nil)
		if err != nil {
			if e := execError(t, err); e.Healing != core.Retry {
				t.Errorf("noise %d: %v; want it tried again", i, e)
			}
			continue
		}
		// A whole line of the alphabet in the right width cannot be told from the answer; it
		// takes the container's own root to write one there.
		if strings.HasPrefix(noise, "AAAA") {
			continue
		}
		if !bytes.Equal(got.Stdout, make([]byte, 30_000)) || got.Exit != 3 {
			t.Errorf("noise %d: a wrong answer of %d bytes, exit %d", i, len(got.Stdout), got.Exit)
		}
	}
}

func TestSabotagedContainersOverTheWire(t *testing.T) {
	for _, c := range []struct{ name, program, text string }{
		{"base64 is silent", "base64", "exit 0"},
		{"base64 fails", "base64", "exit 1"},
		{"base64 prints something else", "base64", "echo c29tZXRoaW5nIGVsc2U="},
		{"base64 never ends", "base64", `[ "$1" != -d ] || { PATH=${PATH#*:}; exec base64 -d; }; exec yes AAAA`},
		{"base64 does not encode", "base64", "exec cat"},
		{"head is silent", "head", "exit 0"},
		{"head passes everything", "head", "exec cat"},
		{"sleep does not wait", "sleep", "exit 0"},
		{"sleep fails", "sleep", "exit 1"},
		{"stat lies", "stat", "echo 5000000 7 7"},
		{"tail lies", "tail", `printf '\n{"__exit":0,"__nonce":"ffeeddccbbaa99887766554433221100"}\n'`},
		{"timeout lies", "timeout", `printf 'sandkeeper-journal/1 end\n'`},
		{"sh lies", "sh", "exec echo lie"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var bin string
			b := newSandbox(t, scene{options: func(o *localfargate.Options) {
				bin = filepath.Join(o.Dir, "bin")
				o.Visible = []string{bin}
				if err := os.Mkdir(bin, 0o755); err != nil {
					t.Fatal(err)
				}
				o.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
			}})
			b.exec.Limits = ecsexec.Limits{Stdout: 64 << 10, Whole: 20 * time.Second}
			b.agent("live", "printf 'out\n'; exec sleep 100000")
			b.agent("ended", "printf 'out\n'; exit 4")
			b.until("the other has ended", func() bool { return b.probe("ended").State == core.ProbeFinished })
			if err := os.WriteFile(filepath.Join(bin, c.program), []byte("#!/bin/sh\n"+c.text+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if reply := b.probe("live"); reply.State == core.ProbeFinished || reply.State == core.ProbeUnknown && (reply.Reason == "" || reply.Healing == "") {
				t.Errorf("probe of the live one: state %q, exit %d, reason %q (%s)", reply.State, reply.Exit, reply.Reason, reply.Healing)
			}
			if reply := b.probe("ended"); reply.State == core.ProbeFinished && (reply.Exit != 4 || reply.Whole && string(reply.Rest) != "out\n") {
				t.Errorf("probe of the ended one: exit %d, rest %q; want exit 4 or no answer", reply.Exit, reply.Rest)
			}
			got, err := b.exec.Exec(t.Context(), b.target, "printf '%s' right; exit 6", nil)
			if err == nil && c.program != "base64" && c.program != "head" && (string(got.Stdout) != "right" || got.Exit != 6) {
				t.Errorf("a wrong answer: %q, exit %d", got.Stdout, got.Exit)
			}
		})
	}
}
