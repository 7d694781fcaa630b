package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

const deployWithin = 3 * time.Minute

// Deployment names what to deploy. The zero value is what make build leaves.
type Deployment struct {
	// Assembly is the synthesized local variant of the stack. Default:
	// cdk.out/local in the repository.
	Assembly string
	// Stack is its name. Default: [names.Stack].
	Stack string
	// ECSEndpoint is local Fargate's loopback URL, which the functions get as
	// AWS_ENDPOINT_URL_ECS; the stack's task definition is registered there.
	// Default: the engine's [Options.ECSEndpoint].
	ECSEndpoint string
}

// Outputs are the outputs of a deployed stack.
type Outputs map[names.Output]string

// Deploy brings the stack to the engine with the pinned CDK CLI, exactly as a
// user brings it to an account: bootstrap, then deploy. It builds nothing. A
// second deploy of the same assembly changes nothing.
func (e *Engine) Deploy(ctx context.Context, d Deployment) (Outputs, error) {
	if d.Assembly == "" {
		d.Assembly = filepath.Join(e.root, "cdk.out", "local")
	}
	if d.Stack == "" {
		d.Stack = names.Stack
	}
	if d.ECSEndpoint == "" {
		d.ECSEndpoint = e.ECSEndpoint
	}
	if _, err := os.Stat(filepath.Join(d.Assembly, "manifest.json")); err != nil {
		return nil, fmt.Errorf("deploy stack %s: no assembly, run make synth: %w", d.Stack, err)
	}
	if !Loopback(d.ECSEndpoint) {
		return nil, fmt.Errorf("deploy stack %s: ECS endpoint %s is not a loopback URL", d.Stack, d.ECSEndpoint)
	}
	ctx, cancel := context.WithTimeout(ctx, deployWithin)
	defer cancel()
	if err := e.cdk(ctx, "bootstrap", "--app", d.Assembly, "aws://"+Account+"/"+Region); err != nil {
		return nil, err
	}
	file := filepath.Join(e.Dir, d.Stack+"-outputs.json")
	if err := e.cdk(ctx, "deploy", d.Stack, "--app", d.Assembly, "--require-approval", "never",
		"--outputs-file", file,
		"--parameters", names.ParamEndpoint+"="+e.Endpoint,
		"--parameters", names.ParamEndpointECS+"="+d.ECSEndpoint); err != nil {
		return nil, err
	}
	outputs, err := readOutputs(file, d.Stack)
	if err != nil || d.ECSEndpoint == e.Endpoint {
		return outputs, err
	}
	outputs[names.OutTaskDefinition], err = e.copyECS(ctx, d.ECSEndpoint, outputs)
	return outputs, err
}

func readOutputs(file, stack string) (Outputs, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read outputs of stack %s: %w", stack, err)
	}
	var all map[string]Outputs
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read outputs of stack %s: %w", stack, err)
	}
	if len(all[stack]) == 0 {
		return nil, fmt.Errorf("read outputs of stack %s: none in %s", stack, file)
	}
	return all[stack], nil
}

// cdk runs one command of the CDK CLI under the guard.
func (e *Engine) cdk(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, filepath.Join(e.root, "node_modules", ".bin", "cdk"), args...)
	command.Dir = e.Dir
	command.Env = append(e.Env(),
		"CDK_HOME="+filepath.Join(e.Dir, "home"), // it remembers an account per key
		"CDK_DISABLE_VERSION_CHECK=1",
		"CDK_DISABLE_CLI_TELEMETRY=true",
		"JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION=20",
		"AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED=true",
		"CI=true", "NO_COLOR=1",
	)
	if err := Guard(command.Env); err != nil {
		return err
	}
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return fmt.Errorf("cdk %s: %w\n%s", args[0], err, output.Bytes())
	}
	return nil
}
