// Package samlocal runs single functions of the deployed stack in Lambda's own runtime
// interface, by SAM on the Docker engine of this machine. Its rule: the functions have
// the binaries and the environment that were deployed, but for their endpoints, which
// are this machine's address on the containers' bridge; [engine.GuardContainer] sees
// each environment first, and nothing of a world outlives its Close.
package samlocal

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/localtls"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// ErrNotInstalled means that SAM is missing; make setup-sam installs it.
var ErrNotInstalled = errors.New("SAM is not installed, run make setup-sam")

// Images that [Options.Image] may name beside those that are there.
const (
	PublicImage = "public" // AWS's own, pulled where it is not there
	SpotImage   = "spot"   // one of Debian's static busybox, made on the spot
)

const (
	invokeWithin = 5 * time.Minute // the first one builds SAM's image
	stopWithin   = 10 * time.Second
	pullWithin   = 2 * time.Minute // of the public image, where another will do
)

// Options say what functions run against.
type Options struct {
	Engine *engine.Engine
	// Outputs are those of the stack that is deployed there.
	Outputs engine.Outputs
	// ECS is local Fargate's URL on the bridge, and Trust the certificate that it shows.
	ECS   string
	Trust *localtls.Certificate
	// Image is what the functions' container is built on: the name of an image that is
	// there or can be pulled, [PublicImage], [SpotImage], or "" for the first of these two
	// that can be had.
	Image string
	// Say is told which of the two it is; nil: nobody is.
	Say func(string)
}

// World is a stack whose functions SAM can run.
type World struct {
	options Options
	docker  *docker.Engine
	dir     string
	root    string
	forward *forwarder
	own     string            // repository of its image
	logical map[string]string // of functions, by deployed name
}

// Open prepares template, environment and image. The caller closes it.
func Open(ctx context.Context, o Options) (_ *World, err error) {
	w := &World{options: o, root: o.Engine.Root(), logical: map[string]string{}}
	if _, err := os.Stat(w.sam()); err != nil {
		return nil, ErrNotInstalled
	}
	if w.docker, err = docker.Open(ctx, ""); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "sandkeeper-sam-"); err != nil {
		return nil, fmt.Errorf("make directory for SAM: %w", err)
	}
	bridge, err := docker.Bridge()
	if err != nil {
		return nil, err
	}
	if w.forward, err = openForwarder(bridge, o.Engine.Endpoint); err != nil {
		return nil, err
	}
	if err := w.writeTemplate(); err != nil {
		return nil, err
	}
	if err := w.writeEnvironment(ctx, bridge); err != nil {
		return nil, err
	}
	return w, w.makeImage(ctx)
}

// makeImage makes the image that functions run on. Whatever it is made of, it is this
// world's own, so that Close finds what runs on it: SAM leaves warm containers behind.
func (w *World) makeImage(ctx context.Context) error {
	w.own = "sandkeeper-lambda-" + strings.ToLower(rand.Text())
	of := w.options.Image
	if of == SpotImage {
		return w.docker.Import(ctx, w.image(), docker.Busybox)
	}
	if of == "" || of == PublicImage {
		var err error
		if of, err = w.public(ctx); err != nil {
			return err
		}
	}
	if w.options.Image != "" {
		return w.docker.Derive(ctx, w.image(), of)
	}
	pull, cancel := context.WithTimeout(ctx, pullWithin)
	defer cancel()
	err := w.docker.Derive(pull, w.image(), of)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if w.options.Say != nil {
		w.options.Say("the public image cannot be had, so one is made on the spot: " + err.Error())
	}
	return w.docker.Import(ctx, w.image(), docker.Busybox)
}

func (w *World) image() string { return w.own + ":base" }

// askImage has SAM say which public image it takes for a runtime and an architecture.
const askImage = `import sys
from samcli.local.docker.lambda_image import LambdaImage, Runtime
print(LambdaImage._INVOKE_REPO_PREFIX + "/" + Runtime.get_image_name_tag(sys.argv[1], sys.argv[2]))`

// public is the image that the pinned SAM takes by itself.
func (w *World) public(ctx context.Context) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(filepath.Dir(w.sam()), "python"), "-c", askImage, runtimeName, architecture())
	command.Env = []string{"HOME=" + w.dir, "SAM_CLI_TELEMETRY=0", "PYTHONDONTWRITEBYTECODE=1"}
	var said bytes.Buffer
	command.Stderr = &said
	name, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("ask SAM for its image: %w\n%s", err, said.Bytes())
	}
	return strings.TrimSpace(string(name)), nil
}

// runtimeName is that of all functions, as their template has it.
const runtimeName = "provided.al2023"

func (w *World) sam() string { return filepath.Join(w.root, ".local", "sam", "bin", "sam") }

func (w *World) file(name string) string { return filepath.Join(w.dir, name) }

// writeTemplate copies the synthesized template with what SAM takes for code, and for
// this machine's processor: an image, a binary and a template of another one fail.
func (w *World) writeTemplate() error {
	data, err := os.ReadFile(filepath.Join(w.root, "cdk.out", "local", names.Stack+".template.json"))
	if err != nil {
		return fmt.Errorf("read template, run make synth-local: %w", err)
	}
	var template map[string]any
	if err := json.Unmarshal(data, &template); err != nil {
		return fmt.Errorf("read template: %w", err)
	}
	resources, _ := template["Resources"].(map[string]any)
	for id, r := range resources {
		resource, _ := r.(map[string]any)
		properties, _ := resource["Properties"].(map[string]any)
		if resource["Type"] != "AWS::Lambda::Function" {
			continue
		}
		name, _ := properties["FunctionName"].(string)
		code, err := w.copyCode(strings.TrimPrefix(name, w.options.Outputs[names.OutInstall]+"-"))
		if err != nil {
			return err
		}
		w.logical[name] = id
		properties["Code"], properties["Architectures"] = code, []string{architecture()}
		// SAM passes on only what the template declares.
		environment, _ := properties["Environment"].(map[string]any)
		variables, _ := environment["Variables"].(map[string]any)
		variables[trustVariable] = ""
	}
	if data, err = json.Marshal(template); err != nil {
		return fmt.Errorf("write template: %w", err)
	}
	return os.WriteFile(w.file("template.json"), data, 0o600)
}

// trustVariable names the file with what a Go program trusts.
const trustVariable = "SSL_CERT_FILE"

const trustFile = "local.pem"

// copyCode puts a function's binary beside the certificate that it is to trust.
func (w *World) copyCode(function string) (dir string, err error) {
	dir = w.file(function)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("copy code of %s: %w", function, err)
	}
	for from, to := range map[string]string{
		filepath.Join(w.root, "dist", "local", function, "bootstrap"): "bootstrap", w.options.Trust.File: trustFile,
	} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), data, 0o755)
		}
		if err != nil {
			return "", fmt.Errorf("copy code of %s: %w", function, err)
		}
	}
	return dir, nil
}

func architecture() string {
	if runtime.GOARCH == "arm64" {
		return "arm64"
	}
	return "x86_64"
}

// writeEnvironment gives each function what it was deployed with, except for the
// endpoints.
func (w *World) writeEnvironment(ctx context.Context, bridge netip.Addr) error {
	client := lambda.NewFromConfig(w.options.Engine.Config())
	all := map[string]map[string]string{}
	for name, id := range w.logical {
		deployed, err := client.GetFunctionConfiguration(ctx, &lambda.GetFunctionConfigurationInput{FunctionName: &name})
		if err != nil {
			return fmt.Errorf("read environment of function %s: %w", name, err)
		}
		env := map[string]string{}
		if deployed.Environment != nil {
			env = deployed.Environment.Variables
		}
		env[string(names.EndpointURL)] = w.forward.url
		env[string(names.EndpointURLECS)] = w.options.ECS
		env[trustVariable] = "/var/task/" + trustFile
		if err := engine.GuardContainer(env, bridge); err != nil {
			return fmt.Errorf("function %s: %w", name, err)
		}
		all[id] = env
	}
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("write environment: %w", err)
	}
	return os.WriteFile(w.file("env.json"), data, 0o600)
}

// command is one of SAM's under the guard.
func (w *World) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	args = append([]string{"local"}, args...)
	args = append(args, "--template", w.file("template.json"), "--env-vars", w.file("env.json"), "--region", engine.Region)
	args = append(args, "--invoke-image", w.image(), "--skip-pull-image")
	command := exec.CommandContext(ctx, w.sam(), args...)
	command.Dir = w.dir
	command.Env = append(w.options.Engine.Env(),
		"HOME="+w.dir, "SAM_CLI_TELEMETRY=0", "SAM_CLI_CHECK_UPDATE=0", "DOCKER_BUILDKIT=0", "DOCKER_HOST="+os.Getenv("DOCKER_HOST"),
		"PYTHONDONTWRITEBYTECODE=1",
	)
	return command, engine.Guard(command.Env)
}

// logicalID is a function's name in the template.
func (w *World) logicalID(f names.Function) (string, error) {
	id, ok := w.logical[w.options.Outputs[names.OutInstall]+"-"+string(f)]
	if !ok {
		return "", fmt.Errorf("run function %s: the template has none of that name", f)
	}
	return id, nil
}

// Invoke runs one function once, in a container of its own, and returns its answer. The
// error holds what SAM and the function said.
func (w *World) Invoke(ctx context.Context, f names.Function, event string) ([]byte, error) {
	id, err := w.logicalID(f)
	if err != nil {
		return nil, err
	}
	if event, err = filepath.Abs(event); err != nil {
		return nil, fmt.Errorf("run function %s: %w", f, err)
	}
	ctx, cancel := context.WithTimeout(ctx, invokeWithin)
	defer cancel()
	command, err := w.command(ctx, "invoke", id, "--event", event)
	if err != nil {
		return nil, err
	}
	var answer, said bytes.Buffer
	command.Stdout, command.Stderr = &answer, &said
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("run function %s: %w\n%s", f, err, said.Bytes())
	}
	return bytes.TrimSpace(answer.Bytes()), nil
}

// Serve runs every function until stop, warm, behind Lambda's own API at endpoint. What
// SAM and the functions say goes to log.
func (w *World) Serve(ctx context.Context, address netip.AddrPort, log *os.File) (endpoint string, stop func() error, err error) {
	if !address.Addr().IsLoopback() {
		return "", nil, fmt.Errorf("serve functions: %s is not loopback", address)
	}
	command, err := w.command(context.WithoutCancel(ctx), "start-lambda", "--host", address.Addr().String(), "--port", fmt.Sprint(address.Port()), "--warm-containers", "EAGER")
	if err != nil {
		return "", nil, err
	}
	command.Stdout, command.Stderr = log, log
	// Its own group: Ctrl-C is for the caller, who then stops it in order.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return "", nil, fmt.Errorf("serve functions: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = command.Wait() // that it ended is all that matters
		close(exited)
	}()
	stop = func() error { return end(command, exited) }
	if err := awaitServer(ctx, address, exited); err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return "http://" + address.String(), stop, nil
}

// end stops SAM, and kills what does not.
func end(command *exec.Cmd, exited <-chan struct{}) error {
	_ = command.Process.Signal(syscall.SIGINT) // it may have ended
	select {
	case <-exited:
		return nil
	case <-time.After(stopWithin):
	}
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	<-exited
	return fmt.Errorf("stop SAM: killed after %s", stopWithin)
}

// Close removes containers, images and files. It may be called after a failed Open.
func (w *World) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if w.own != "" {
		errs = append(errs, w.docker.RemoveImages(ctx, w.own))
	}
	if w.forward != nil {
		w.forward.close()
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}
