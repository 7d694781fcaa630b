// Command infra synthesizes the Sandkeeper stack. It is a module of its own so
// that the functions' go.mod lists only what ships. Every string that a function
// also knows comes from internal/names, and nothing here grants by a construct's
// convenience: each role is an explicit list.
//
// What an installation may choose is told by the app's context, see
// [sandkeeper.FromContext].
package main

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"
	"github.com/sandkeeper/sandkeeper/infra/sandkeeper"
)

func main() {
	defer jsii.Close()
	app := awscdk.NewApp(nil)
	sandkeeper.NewStack(app, sandkeeper.FromContext(app))
	app.Synth(nil)
}
