package localfargate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
)

// driverVariable chooses the driver of every test here: what holds of tasks holds
// whatever runs them.
const driverVariable = "SANDKEEPER_TEST_DRIVER"

var base = sync.OnceValues(func() (string, error) {
	const name = "sandkeeper-sandbox:test"
	engine, err := docker.Open(context.Background(), "")
	if err != nil {
		return "", err
	}
	return name, engine.Import(context.Background(), name, docker.Busybox)
})

// baseImage is an image made on the spot. Without an engine the test skips, unless CI
// is set and containers are what is to be tested.
func baseImage(t *testing.T) string {
	t.Helper()
	name, err := base()
	if errors.Is(err, docker.ErrNotHere) && (os.Getenv("CI") == "" || os.Getenv(driverVariable) == "") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// containers begins a server that runs tasks in containers.
func containers(t *testing.T, alter func(*localfargate.Options)) *world {
	t.Helper()
	image := baseImage(t)
	return begin(t, func(o *localfargate.Options) {
		o.Driver, o.Image = localfargate.DriverDocker, image
		if alter != nil {
			alter(o)
		}
	})
}

// sizes are the task's limits.
func sizes(cpu, memory string) func(*ecs.RunTaskInput) {
	return func(in *ecs.RunTaskInput) { in.Overrides = &types.TaskOverride{Cpu: &cpu, Memory: &memory} }
}

func TestAContainerIsOfItsImageAndHasItsLimits(t *testing.T) {
	w := containers(t, nil)
	w.register(types.ContainerDefinition{Memory: new(int32(64))})
	arn := w.run(sizes("512", "128"))
	ask := func(command string) string {
		t.Helper()
		return strings.TrimSpace(attach(t, w.exec(arn, sh(command))).follow(nil).output)
	}
	if got := ask("ls -l /bin/cat /etc/passwd | grep -c busybox; ls /work /home 2>/dev/null; echo -"); got != "1\r\n-" {
		t.Errorf("the container's files are not its image's: %q", got)
	}
	const limit = `cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null`
	if got := ask(limit); got != fmt.Sprint(64<<20) {
		t.Errorf("memory is limited to %s, want the container's own 64 MiB", got)
	}
	const share = `cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo $(cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us) $(cat /sys/fs/cgroup/cpu/cpu.cfs_period_us)`
	if got := ask(share); got != "50000 100000" {
		t.Errorf("processor time is %s, want half of one", got)
	}
}

func TestAContainerThatUsesUpItsMemoryIsKilledAndSaysSo(t *testing.T) {
	w := containers(t, nil)
	w.register(shell("tail /dev/zero"))
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{
		TaskDefinition: new("sandbox"), Overrides: &types.TaskOverride{Memory: new("32")},
	})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	c := w.describe(arn).Containers[0]
	if c.ExitCode == nil || *c.ExitCode != 137 || c.Reason == nil || *c.Reason != docker.OutOfMemory {
		t.Errorf("exit code %v, reason %v, want 137 and %q", c.ExitCode, c.Reason, docker.OutOfMemory)
	}
}

func TestAnImageThatIsNotThereIsNotPulled(t *testing.T) {
	w := containers(t, func(o *localfargate.Options) { o.Image = "" })
	w.register(types.ContainerDefinition{Image: new("sandkeeper-no-such:image")})
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	task := w.describe(arn)
	if task.StopCode != types.TaskStopCodeTaskFailedToStart || !strings.HasPrefix(*task.StoppedReason, "CannotPullContainerError: sandkeeper-no-such:image: ") {
		t.Errorf("task: %s %q", task.StopCode, *task.StoppedReason)
	}
}

// serverVariable makes this test's process a server that waits to be killed.
const serverVariable = "SANDKEEPER_TEST_DOCKER_SERVER"

// TestContainersEndWithAKilledServer: its guardian removes them.
func TestContainersEndWithAKilledServer(t *testing.T) {
	if file := os.Getenv(serverVariable); file != "" {
		w := containers(t, nil)
		w.register(shell("trap '' TERM; while :; do sleep 1; done"))
		arn := w.run(nil)
		w.until("it has processes", func() bool {
			task, err := w.server.Task(arn)
			return err == nil && len(task.Containers[0].Processes) > 1
		})
		task, err := w.server.Task(arn)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, fmt.Append(nil, task.Containers[0].Processes[0].PID), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Stdout.Close()
		select {} // until killed
	}
	baseImage(t) // skips where there is no engine
	file := filepath.Join(t.TempDir(), "pid")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestContainersEndWithAKilledServer$")
	// What a killed process leaves lies in this test's own directory, and goes with it.
	child.Env = append(os.Environ(), serverVariable+"="+file, "TMPDIR="+t.TempDir())
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("the server: %s (%v)", said, err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	deadline, pace := time.After(2*time.Minute), time.NewTicker(50*time.Millisecond)
	defer pace.Stop()
	for alive(pid) {
		select {
		case <-pace.C:
		case <-deadline:
			t.Fatal("the container outlived its server")
		}
	}
}
