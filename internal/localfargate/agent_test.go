package localfargate_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// set changes what goes wrong in a task.
func (w *world) set(arn string, f localfargate.Faults) {
	w.t.Helper()
	if err := w.server.SetFaults(arn, f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) execute(arn string) error {
	_, err := w.ExecuteCommand(w.t.Context(), &ecs.ExecuteCommandInput{Task: &arn, Command: new("true"), Interactive: true})
	return err
}

func TestCallsAreRefusedAsOftenAsAsked(t *testing.T) {
	w, arn := sandbox(t, nil)
	w.set(arn, localfargate.Faults{ExecError: "AccessDeniedException", ExecErrors: 2})
	for range 2 {
		if got := code(t, w.execute(arn)); got != "AccessDeniedException" {
			t.Errorf("got %s, want AccessDeniedException", got)
		}
	}
	if err := w.execute(arn); err != nil {
		t.Errorf("the third call: %v", err)
	}
	for _, f := range []localfargate.Faults{{ExecErrors: 1}, {ExecError: "x", ExecErrors: -1}, {LoseFirst: -1}} {
		if err := w.server.SetFaults(arn, f); err == nil {
			t.Errorf("faults %+v: want them refused", f)
		}
	}
}

func TestRestartedContainerHasAnotherRuntimeAndNoAgent(t *testing.T) {
	w := begin(t, nil)
	define := func(enabled bool) {
		in := shell("echo $$ >> starts; exec sleep 1000")
		in.RestartPolicy = &types.ContainerRestartPolicy{Enabled: &enabled}
		w.register(in)
	}
	define(true)
	arn := w.run(nil)
	w.until("the container has begun", func() bool { return w.file(arn, "starts") != "" })
	before := *w.describe(arn).Containers[0].RuntimeId
	if err := w.server.RestartContainer(arn, "agent"); err != nil {
		t.Fatal(err)
	}
	w.until("the container has begun again", func() bool { return strings.Count(w.file(arn, "starts"), "\n") == 2 })
	w.until("it has another runtime id", func() bool { return *w.describe(arn).Containers[0].RuntimeId != before })
	task := w.describe(arn)
	if *task.LastStatus != "RUNNING" || *task.Containers[0].ManagedAgents[0].LastStatus != "RUNNING" {
		t.Errorf("task %s, agent %s; want both RUNNING", *task.LastStatus, *task.Containers[0].ManagedAgents[0].LastStatus)
	}
	if got := code(t, w.execute(arn)); got != "TargetNotConnectedException" {
		t.Errorf("exec after it: %s, want TargetNotConnectedException", got)
	}
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus(arn, "STOPPED")
	if err := w.server.RestartContainer(arn, "agent"); !errors.Is(err, localfargate.ErrNotRunning) {
		t.Errorf("restart of a stopped one: %v", err)
	}
	define(false)
	if err := w.server.RestartContainer(w.run(nil), "agent"); !errors.Is(err, localfargate.ErrNoRestart) {
		t.Errorf("restart without a policy: %v", err)
	}
}

func TestReadOnlyRootStopsTheAgentUnlessItsPathsAreMounted(t *testing.T) {
	w := begin(t, nil)
	mounts := func(paths ...string) (out []types.MountPoint) {
		for _, path := range paths {
			out = append(out, types.MountPoint{ContainerPath: new(path), SourceVolume: new("v")})
		}
		return out
	}
	for _, c := range []struct {
		name   string
		mounts []types.MountPoint
		status string
	}{
		{"nothing mounted", nil, "STOPPED"},
		{"one mounted", mounts("/managed-agents"), "STOPPED"},
		{"another path that begins alike", mounts("/managed-agents-x", "/var"), "STOPPED"},
		{"all mounted", mounts("/managed-agents", "/var/lib/amazon/ssm", "/var/log"), "RUNNING"},
	} {
		in := shell("exec sleep 1000")
		in.ReadonlyRootFilesystem, in.MountPoints = new(true), c.mounts
		w.register(in)
		out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox"), EnableExecuteCommand: true})
		if err != nil {
			t.Fatal(err)
		}
		arn := *out.Tasks[0].TaskArn
		w.awaitStatus(arn, "RUNNING")
		w.until(c.name+": the agent is "+c.status, func() bool {
			return *w.describe(arn).Containers[0].ManagedAgents[0].LastStatus == c.status
		})
		if reason := w.describe(arn).Containers[0].ManagedAgents[0].Reason; (reason != nil) != (c.status == "STOPPED") {
			t.Errorf("%s: reason %v", c.name, reason)
		}
	}
}

func TestHandshakeForEncryptionNeverSucceeds(t *testing.T) {
	w, arn := sandbox(t, nil)
	w.set(arn, localfargate.Faults{KMS: true})
	for answer, want := range map[string]string{
		`{"ProcessedClientActions":[{"ActionType":"KMSEncryption","ActionStatus":3,"Error":"unsupported"}]}`: "KMSEncryption failed on client with status 3 error: unsupported",
		`{"ProcessedClientActions":[{"ActionType":"KMSEncryption","ActionStatus":1}]}`:                       "Fetching data key failed",
		`not JSON`: "initiating handshake",
	} {
		c := attach(t, w.exec(arn, sh("echo ran > ran")))
		for {
			m, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if m.name() != "output_stream_data" {
				continue
			}
			var request struct{ RequestedClientActions []struct{ ActionType string } }
			if err := json.Unmarshal(m.payload, &request); err != nil || len(request.RequestedClientActions) != 2 {
				t.Fatalf("request %s: %v", m.payload, err)
			}
			c.acknowledge(m)
			c.next = m.sequence + 1
			break
		}
		c.typed("thrown away")
		if err := c.conn.Write(t.Context(), websocket.MessageBinary, writeMessage("input_stream_data", c.sent, 6, []byte(answer))); err != nil {
			t.Fatal(err)
		}
		if got := c.follow(nil); !strings.Contains(got.closed, want) || got.output != "" {
			t.Errorf("answer %s: %+v; want %q at the end", answer, got, want)
		}
	}
	if w.file(arn, "ran") != "" {
		t.Error("the command ran")
	}
}

func TestRestartOverHTTP(t *testing.T) {
	w, arn := sandbox(t, nil)
	id := arn[strings.LastIndex(arn, "/")+1:]
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL()+"/_local/tasks/"+id+"/containers/agent/restart", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("restart without a policy: status %d, want 400", response.StatusCode)
	}
}
