package installtest

import (
	"context"
	"path/filepath"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// DeployExampleTool deploys the tools of examples/tool-go, which the local variant of the
// stack lets definitions name, from the binary that make build-local leaves under root,
// and returns the function's name. One that is deployed already is success.
func (in *Installation) DeployExampleTool(ctx context.Context, root string) (string, error) {
	name := in.Out[names.OutInstall] + "-example-tool"
	return name, engine.PutFunction(ctx, in.Functions, name, filepath.Join(root, "dist", "local", "example-tool", "bootstrap"))
}
