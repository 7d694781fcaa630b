// Command infra synthesizes the Sandkeeper stack. It is a module of its own so
// that the functions' go.mod lists only what ships. Every string that a function
// also knows comes from internal/names, and nothing here grants by a construct's
// convenience: each role is an explicit list.
//
// With the context "spoke" it is the stack of a spoke instead: what an installation needs
// in another account or Region.
//
// What an installation may choose is told by the file that SANDKEEPER_CHOICES names, and
// by the app's context, which goes before it: see [sandkeeper.FromContext], and of a spoke
// [sandkeeper.SpokeProps].
package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"
	"github.com/sandkeeper/sandkeeper/infra/sandkeeper"
)

func main() {
	if err := synthesize(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// synthesize writes the assembly, or says in one error what it cannot be made of. The
// constructs panic for that, as CDK does; a panic of the Go runtime is a fault of ours, and
// keeps its stack.
func synthesize() (err error) {
	defer jsii.Close()
	defer func() {
		switch said := recover().(type) {
		case nil:
		case runtime.Error:
			panic(said)
		default:
			err = fmt.Errorf("synthesize: %v", said)
		}
	}()
	choices, err := sandkeeper.ReadChoices(os.Getenv(sandkeeper.ChoicesVariable))
	if err != nil {
		return err
	}
	spoke, err := sandkeeper.ReadSpoke(os.Getenv(sandkeeper.SpokeVariable))
	if err != nil {
		return err
	}
	maps.Copy(choices, spoke)
	app := awscdk.NewApp(&awscdk.AppProps{Context: &choices})
	if spoke, ok := sandkeeper.SpokeFromContext(app); ok {
		sandkeeper.NewSpokeStack(app, spoke)
	} else {
		sandkeeper.NewStack(app, sandkeeper.FromContext(app))
	}
	app.Synth(nil)
	return nil
}
