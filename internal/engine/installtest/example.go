package installtest

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// exampleTimeout is how long the example's tools may take, seconds.
const exampleTimeout = 150

// DeployExampleTool deploys the tools of examples/tool-go, which the local variant of the
// stack lets definitions name, from the binary that make build-local leaves under root,
// and returns the function's name. One that is deployed already is success.
func (in *Installation) DeployExampleTool(ctx context.Context, root string) (string, error) {
	name := in.Out[names.OutInstall] + "-example-tool"
	binary, err := os.ReadFile(filepath.Join(root, "dist", "local", "example-tool", "bootstrap"))
	if err != nil {
		return "", fmt.Errorf("deploy %s: %w", name, err)
	}
	code, err := packed(binary)
	if err != nil {
		return "", fmt.Errorf("deploy %s: %w", name, err)
	}
	_, err = in.Functions.CreateFunction(ctx, &lambda.CreateFunctionInput{
		FunctionName: &name, Runtime: types.RuntimeProvidedal2023, Handler: new("bootstrap"), Timeout: new(int32(exampleTimeout)),
		Role: new("arn:aws:iam::000000000000:role/example"), Code: &types.FunctionCode{ZipFile: code},
	})
	if _, there := errors.AsType[*types.ResourceConflictException](err); err != nil && !there {
		return "", fmt.Errorf("deploy %s: %w", name, err)
	}
	return name, nil
}

// packed is a function's code as Lambda takes it.
func packed(binary []byte) ([]byte, error) {
	var code bytes.Buffer
	w := zip.NewWriter(&code)
	header := &zip.FileHeader{Name: "bootstrap", Method: zip.Deflate}
	header.SetMode(0o755)
	file, err := w.CreateHeader(header)
	if err == nil {
		_, err = file.Write(binary)
	}
	err = errors.Join(err, w.Close())
	return code.Bytes(), err
}
