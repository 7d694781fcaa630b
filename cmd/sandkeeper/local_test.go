package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// asMain makes the test binary the command itself.
const asMain = "SANDKEEPER_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	if os.Getenv(asMain) != "" {
		main()
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// startLocal runs "sandkeeper local" as a process of its own.
func startLocal(t *testing.T, dir string) (*exec.Cmd, localReady) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "local", "--quick", "--unthrottled", "--dir", dir)
	cmd.Env = append(os.Environ(), asMain+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready localReady
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("first line %q: %v", line, err)
	}
	return cmd, ready
}

// startDeafTask runs a task whose process ignores SIGTERM, and returns its pid.
func startDeafTask(t *testing.T, endpoint string) int {
	t.Helper()
	client := ecs.New(ecs.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
	_, err := client.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{{
			Name: new("agent"), Command: []string{"/bin/sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.1; done"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")}); err != nil {
		t.Fatal(err)
	}
	pid := 0
	eventually(t, "the task runs", func() bool {
		for _, task := range tasks(t, endpoint) {
			for _, p := range task.Containers[0].Processes {
				if strings.HasPrefix(p.Command, "/bin/sh") {
					pid = p.PID
				}
			}
		}
		return pid != 0
	})
	return pid
}

func tasks(t *testing.T, endpoint string) []localfargate.TaskState {
	t.Helper()
	response, err := http.Get(endpoint + "/_local/tasks")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var out []localfargate.TaskState
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline, pace := time.After(5*time.Minute), time.NewTicker(20*time.Millisecond)
	defer pace.Stop()
	for !condition() {
		select {
		case <-pace.C:
		case <-deadline:
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestInterruptedLocalLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd, ready := startLocal(t, dir)
	pid := startDeafTask(t, ready.Endpoint)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("end of the command: %v, want status 0", err)
	}
	if !gone(pid) {
		t.Errorf("process %d outlived the command", pid)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestKilledLocalTakesItsTasksWithIt(t *testing.T) {
	cmd, ready := startLocal(t, t.TempDir())
	pid := startDeafTask(t, ready.Endpoint)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the task's process ends too", func() bool { return gone(pid) })
}
