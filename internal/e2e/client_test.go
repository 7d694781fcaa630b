package e2e_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestAHostKeepsCheckpointsByTheGoClient: it saves by name while an agent works, lists,
// shows, compares, brings one back into the running sandbox, and forks a thread, in whose
// sandbox the next turn finds what was saved; conversation and artifact go with it.
func TestAHostKeepsCheckpointsByTheGoClient(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c, ctx := in.caller(), t.Context()
	keeps := client.NewCheckpoints(in.engine.Config(), in.out[names.OutCheckpoint])
	thread := client.ThreadKey{Tenant: "-", Thread: c.thread}
	run, id := core.RunID("keeps-"+rand.Text()), func(name string) client.CheckpointID { return client.CheckpointID(name + "-" + rand.Text()) }
	first, second, forked := id("first"), id("second"), id("forked")

	shell, say := in.inParts(t, []byte("one\n"), []byte("two\n"))
	begun := c.start(t, run, `echo one >file; echo gone >old; while [ ! -e go ]; do sleep 0.1; done; echo two >file; rm old; echo new >new; `+shell, nil)
	task, err := in.fargate.Task(begun.Run.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "first files", func() bool { return in.inWork(t, task.ARN, "old") == "gone\n" })
	save := func(id client.CheckpointID, label string) {
		t.Helper()
		report, err := keeps.Save(ctx, client.SaveRequest{
			ThreadKey: thread, ID: id, Run: run, Key: begun.Run.SandboxKey, Instance: begun.Run.Instance, Owner: "run:" + string(run), Reason: client.ReasonNamed, Label: &label,
		})
		if err != nil || report.State != client.StepDone || report.Checkpoint != id || report.Files == 0 {
			t.Fatalf("save %s: %+v, %v", id, report, err)
		}
	}
	save(first, "before")
	in.putWork(t, task.ARN, "go", "")
	await(t, "second files", func() bool { return in.inWork(t, task.ARN, "new") == "new\n" })
	said, err := keeps.PutConversation(ctx, thread, 0, []byte(`[{"role":"user"}]`))
	if err != nil || said.Version != 1 {
		t.Fatalf("conversation %+v, %v", said, err)
	}
	if _, err := keeps.PutArtifact(ctx, thread, client.Artifact{Run: run, ID: "report", Name: "r.txt", MIME: "text/plain", CreatedAt: 1, Data: []byte("all is well")}); err != nil {
		t.Fatal(err)
	}
	save(second, "after")

	list, err := keeps.List(ctx, thread)
	if err != nil || len(list) != 2 || list[0].ID != first || list[1].ID != second || !list[1].Head || list[1].Parent != first {
		t.Errorf("list %+v, %v", list, err)
	}
	if shown, err := keeps.Show(ctx, thread, first); err != nil || shown.ID != first || shown.Label == nil || *shown.Label != "before" || shown.Head {
		t.Errorf("show %+v, %v", shown, err)
	}
	if head, err := keeps.Head(ctx, thread); err != nil || head.ID != second || len(head.Artifacts) != 1 {
		t.Errorf("head %+v, %v", head, err)
	}
	if a, err := keeps.Artifact(ctx, thread, second, "report"); err != nil || string(a.Data) != "all is well" {
		t.Errorf("artifact %+v, %v", a, err)
	}
	in.checkDifference(t, keeps, thread, first, second)

	back, err := keeps.Restore(ctx, client.RestoreRequest{
		ThreadKey: thread, ID: id("restore"), Checkpoint: first, Run: run, Key: begun.Run.SandboxKey, Instance: begun.Run.Instance, Owner: "run:" + string(run),
	})
	if err != nil || back.State != client.StepDone || in.inWork(t, task.ARN, "old") != "gone\n" || in.inWork(t, task.ARN, "file") != "one\n" || in.inWork(t, task.ARN, "new") != "" {
		t.Errorf("restored as %+v, %v", back, err)
	}
	branch := in.caller()
	branches, err := keeps.Fork(ctx, client.ForkRequest{Source: thread, Checkpoint: second, Branches: []client.ForkBranch{{Thread: branch.thread, ID: forked}}})
	if err != nil || len(branches) != 1 || branches[0].ID != forked || branches[0].ForkOf != second {
		t.Fatalf("fork %+v, %v", branches, err)
	}
	for range 3 {
		say()
	}
	c.output(t, run)
	c.finish(t, run)
	next := branch.start(t, run+"-branch", "cat file new; test ! -e old", nil)
	if got := branch.output(t, run+"-branch"); next.RestoredFrom != forked || got != "two\nnew\n" {
		t.Errorf("the branch begins with %+v, and finds %q", next, got)
	}
	if carried, err := keeps.Conversation(ctx, client.ThreadKey{Tenant: "-", Thread: branch.thread}); err != nil || !bytes.Equal(carried.Data, []byte(`[{"role":"user"}]`)) {
		t.Errorf("the branch's conversation is %+v, %v", carried, err)
	}
	branch.finish(t, run+"-branch")
}

// checkDifference compares what the test's agent has changed, and asks for what is not there.
func (in *installation) checkDifference(t *testing.T, keeps *client.Checkpoints, thread client.ThreadKey, first, second client.CheckpointID) {
	t.Helper()
	d, err := keeps.Diff(t.Context(), thread, first, second, 0)
	var kinds []string
	for _, change := range d.Changes {
		kinds = append(kinds, change.Path+" "+change.Kind)
	}
	if slices.Sort(kinds); err != nil || d.More || !slices.Contains(kinds, "new added") || !slices.Contains(kinds, "old removed") || !slices.ContainsFunc(kinds, func(k string) bool { return len(k) > 5 && k[:5] == "file " }) {
		t.Errorf("diff %q, %v", kinds, err)
	}
	if d, err := keeps.Diff(t.Context(), thread, first, second, 1); err != nil || len(d.Changes) != 1 || !d.More {
		t.Errorf("diff of one path %+v, %v", d, err)
	}
	_, err = keeps.Show(t.Context(), thread, "no-such")
	if e, ok := errors.AsType[*client.RefusedError](err); !ok || e.Code == "" {
		t.Errorf("show of none: %v", err)
	}
}
