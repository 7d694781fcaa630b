package engine_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	os.Exit(m.Run())
}

// TestDeploy brings the built stack to an engine as users do, twice.
func TestDeploy(t *testing.T) {
	e := enginetest.Own(t, engine.Options{})
	fargate, err := localfargate.New(localfargate.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := fargate.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fargate.Close(); err != nil {
			t.Error(err)
		}
	})
	deployment := engine.Deployment{ECSEndpoint: fargate.URL()}
	outputs, err := e.Deploy(t.Context(), deployment)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Deploy(t.Context(), deployment)
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []names.Output{
		names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints, names.OutBucket, names.OutReclaimQueue,
		names.OutDeadLetterQueue, names.OutCluster, names.OutTaskDefinition, names.OutReapFunction,
		names.OutProbeFunction, names.OutReclaimFunction, names.OutSubnets, names.OutSecurityGroup, names.OutInstall, names.OutMode,
		names.OutShardQueue, names.OutShardDead, names.OutEventBus, names.OutCheckpoint, names.OutCheckpointURL,
		names.OutSession, names.OutTools, names.OutToolsURL, names.OutPlaces,
	} {
		if outputs[output] == "" {
			t.Errorf("no output %s", output)
		}
		if output != names.OutTaskDefinition && again[output] != outputs[output] {
			t.Errorf("a second deploy changed %s from %s to %s", output, outputs[output], again[output])
		}
	}
	functions := lambda.NewFromConfig(e.Config())
	reap, err := functions.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{
		FunctionName: new(outputs[names.OutReapFunction]),
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[names.Key]string{
		names.EndpointURLECS: fargate.URL(),
		names.EndpointURL:    e.Endpoint,
		names.RunsTable:      outputs[names.OutRunsTable],
		names.ProbeFunction:  outputs[names.OutProbeFunction],
		names.Mode:           names.ModeEnforce,
	} {
		if got := reap.Environment.Variables[string(key)]; got != want {
			t.Errorf("reap's %s is %q, want %q", key, got, want)
		}
	}
	task, err := e.ECS(fargate.URL()).DescribeTaskDefinition(t.Context(), &ecs.DescribeTaskDefinitionInput{
		TaskDefinition: new(outputs[names.OutTaskDefinition]),
	})
	if err != nil {
		t.Fatal(err)
	}
	container := task.TaskDefinition.ContainerDefinitions[0]
	if *container.Name != names.AgentContainer || !*container.LinuxParameters.InitProcessEnabled {
		t.Errorf("local Fargate has container %s with init process %v", *container.Name, *container.LinuxParameters.InitProcessEnabled)
	}
	checkShards(t, e, outputs)
	checkDaily(t, functions, outputs)
}

func TestDeployRefusesAForeignECS(t *testing.T) {
	e := enginetest.Shared(t)
	assembly := t.TempDir()
	if err := os.WriteFile(assembly+"/manifest.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := e.Deploy(t.Context(), engine.Deployment{Assembly: assembly, ECSEndpoint: "https://ecs.example.test"})
	if err == nil || !strings.Contains(err.Error(), "not a loopback URL") {
		t.Errorf("got %v", err)
	}
}

func TestAttachRefusesAForeignEngine(t *testing.T) {
	_, err := engine.Attach("https://sqs.example.test", engine.Options{Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "not a loopback URL") {
		t.Errorf("got %v", err)
	}
}
