package main

import (
	"crypto/rand"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/scheduler"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestTheRunbooksCommands are run as they stand on the page, in an order that has something
// for each to show. A command that is on the page has a row, and none else.
func TestTheRunbooksCommands(t *testing.T) {
	w := installed(t)
	w.image(t)
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	r := w.begin(t, agent{tenant: "acme", run: core.RunID("by-the-book-" + rand.Text()), shell: lives, stays: true})
	name := r.RunKey.String()
	w.wrote(t, r, "begun")
	w.save(t, r, "saved-by-the-book")
	rogue := w.rogue(t)
	eventually(t, "the rogue runs", func() bool {
		task, err := w.fargate.Task(rogue)
		return err == nil && task.LastStatus == "RUNNING"
	})
	if err := w.fargate.AgeTask(rogue, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	dead := w.out[names.OutShardDead]
	w.drain(t, dead)
	w.send(t, dead, `{"shards":[9]}`)
	t.Cleanup(func() { w.drain(t, dead) })
	rows := []struct {
		command string
		code    int
		says    []string
	}{
		{"freeze --why …", exitDone, []string{"frozen", "by tester: test"}},
		{"mode", exitDone, []string{"frozen", "since 20", "by tester: test"}},
		{"thaw --why …", exitDone, nil},
		{"mode enforce --why …", exitDone, []string{"enforce"}},
		{"explain TENANT/RUN", exitDone, []string{"evidence", "looked at next", "would end it"}},
		{"doctor", exitFindings, []string{"schedules", "permissions", "tables", "endpoints", "cure:"}},
		{"sweep", exitDone, []string{"looked at"}},
		{"plan", exitDone, []string{"looked at"}},
		{"audit tasks", exitFindings, []string{rogue[strings.LastIndex(rogue, "/")+1:], "no ledger row"}},
		{"redrive", exitFindings, []string{`{"shards":[9]}`}},
		{"checkpoints list TENANT/THREAD", exitDone, []string{"saved-by-the-book"}},
		{"checkpoints verify TENANT/THREAD", exitDone, []string{"saved-by-the-book"}},
		{"hold TENANT/RUN --for 12h --why …", exitDone, []string{"held", "by tester: test"}},
		{"runs", exitDone, []string{name, "HELD", "until"}},
		{"cost --by thread", exitDone, []string{name, "kept warm"}},
		{"logs TENANT/RUN", exitDone, nil},
		{"kill TENANT/RUN --why …", exitDone, []string{name}},
	}
	var tried []string
	for _, row := range rows {
		t.Run(row.command, func(t *testing.T) {
			line := strings.NewReplacer("TENANT/RUN", name, "TENANT/THREAD", name, "…", "test").Replace(row.command)
			a := sandkeeper(t, strings.Fields(line)...)
			if a.code == exitRefused && strings.Contains(a.err, "say --yes") { // it asks, and here is nobody
				a = sandkeeper(t, append(strings.Fields(line), "--yes")...)
			}
			if a.code != row.code {
				t.Errorf("exit %d, want %d\n%s%s", a.code, row.code, a.out, a.err)
			}
			for _, want := range row.says {
				if !strings.Contains(a.out+a.err, want) {
					t.Errorf("it does not say %q\n%s%s", want, a.out, a.err)
				}
			}
		})
		tried = append(tried, row.command)
	}
	for _, m := range regexp.MustCompile("`sandkeeper ([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		if !slices.Contains(tried, m[1]) {
			t.Errorf("the page has sandkeeper %s, which nobody tries", m[1])
		}
	}
	for _, command := range tried {
		if !strings.Contains(string(page), "`sandkeeper "+command+"`") {
			t.Errorf("the page does not have sandkeeper %s", command)
		}
	}
	w.checkTick(t, string(page))
}

// checkTick asks for the schedule by the name that the page has.
func (w *world) checkTick(t *testing.T, page string) {
	t.Helper()
	m := regexp.MustCompile("`aws scheduler get-schedule --name ([a-z-]+)`").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page does not ask for the schedule")
	}
	if s, err := w.Schedules.GetSchedule(t.Context(), &scheduler.GetScheduleInput{Name: &m[1]}); err != nil || s.State == "" {
		t.Errorf("schedule %s: %+v, %v", m[1], s, err)
	}
}
