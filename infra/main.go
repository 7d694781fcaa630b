// Command infra synthesizes the Sandkeeper stack. It is a module of its own so
// that the functions' go.mod lists only what ships. Every string that a function
// also knows comes from internal/names, and nothing here grants by a construct's
// convenience: each role is an explicit list.
//
// Context: install (name of the installation, default "sandkeeper"), dist
// (directory with <function>/bootstrap), sandboxImage (image of the sample task
// definition), mode (observe or enforce, which holds until an operator sets one;
// default observe, enforce in the local variant), onCheckpointFailure (hold or release:
// what becomes of a sandbox whose workspace cannot be stored; default hold),
// checkpointConcurrency (how many invocations of the checkpoint function there are at a
// time; default no cap of its own), keepCheckpoints (how many of a thread's newest
// checkpoints outlive the day, beside the named ones; default 0, all), eventBus (name of the bus that hears what becomes of
// runs), local=true (the variant for an engine on loopback).
package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func main() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	props := propsFrom(app)
	newStack(app, props)
	app.Synth(nil)
}

// propsFrom reads the app's context; what is not given has a default.
func propsFrom(app awscdk.App) Props {
	p := Props{
		Install:      contextText(app, "install", names.Stack),
		SandboxImage: contextText(app, "sandboxImage", "debian:stable-slim"),
		EventBus:     contextText(app, "eventBus", "default"),
		OnFailure:    cmp.Or(contextGiven(app, "onCheckpointFailure"), names.FailureHold),
		Tenants:      contextText(app, "tenants", `{"":["-"]}`),
	}
	// The CLI passes context as text, CDK_CONTEXT_JSON as JSON.
	switch v := app.Node().TryGetContext(new("local")).(type) {
	case bool:
		p.Local = v
	case string:
		p.Local = v == "true"
	}
	// What a first deploy would do is to be seen before it does it.
	mode := names.ModeObserve
	if p.Local {
		mode = names.ModeEnforce
	}
	p.Mode = contextText(app, "mode", mode)
	p.CheckpointConcurrency = contextGiven(app, "checkpointConcurrency")
	p.KeepCheckpoints = cmp.Or(contextGiven(app, "keepCheckpoints"), "0")
	dist := filepath.Join("..", "dist")
	if p.Local {
		dist = filepath.Join(dist, "local")
	}
	p.Dist = contextText(app, "dist", dist)
	return p
}

// contextGiven renders whatever the context has, so that what is neither text nor number
// is refused rather than overlooked; empty if there is nothing.
func contextGiven(app awscdk.App, key string) string {
	switch v := app.Node().TryGetContext(&key).(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

func contextText(app awscdk.App, key, otherwise string) string {
	if v, ok := app.Node().TryGetContext(&key).(string); ok && v != "" {
		return v
	}
	return otherwise
}
