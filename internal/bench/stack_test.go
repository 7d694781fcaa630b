package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// stackTimes times the synthesis of the stack and its deploy to the local engine, each
// when it has been done before.
func stackTimes(t *testing.T, _ int) []figure {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	assembly := filepath.Join(t.TempDir(), "assembly")
	synth := secondTime(t, func() error {
		c := exec.CommandContext(t.Context(), "go", "run", ".")
		c.Dir = filepath.Join(root, "infra")
		c.Env = append(os.Environ(), "SANDKEEPER_CHOICES=", `CDK_CONTEXT_JSON={"local":true}`, "CDK_OUTDIR="+assembly)
		return c.Run()
	})
	e := enginetest.Own(t, engine.Options{})
	fargate, err := localfargate.New(localfargate.Options{})
	if err == nil {
		err = fargate.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fargate.Close(); err != nil {
			t.Error(err)
		}
	})
	deploy := func() (time.Duration, error) {
		began := time.Now()
		_, err := e.Deploy(t.Context(), engine.Deployment{Assembly: assembly, ECSEndpoint: fargate.URL()})
		return time.Since(began), err
	}
	first, err := deploy()
	if err != nil {
		t.Fatal(err)
	}
	second, err := deploy()
	if err != nil {
		t.Fatal(err)
	}
	return []figure{
		{Name: "synthesis of the stack, built before", Value: synth.Seconds(), Unit: "s", Goal: "<= 15",
			how: "the CDK app run a second time, with the functions there"},
		{Name: "deploy to an empty local engine, built before", Value: first.Seconds(), Unit: "s", Goal: "<= 20",
			how: "cdk bootstrap and cdk deploy of the assembly to an engine that has just started; once more, with nothing to change: " + second.Round(100*time.Millisecond).String()},
	}
}

// secondTime does something twice and times the second.
func secondTime(t *testing.T, do func() error) time.Duration {
	t.Helper()
	var took time.Duration
	for range 2 {
		began := time.Now()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		took = time.Since(began)
	}
	return took
}
