package engine

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
)

// ToolTimeout is how long a function of [PutFunction] may take, longer than any tool.
const ToolTimeout = 150 * time.Second

// PutFunction makes a function that the stack does not have, a host's tools for example,
// of the file bootstrap. One of that name that is there already is success. The error
// matches [os.ErrNotExist] where the file is not there.
func PutFunction(ctx context.Context, functions *lambda.Client, name, bootstrap string) error {
	binary, err := os.ReadFile(bootstrap)
	if err != nil {
		return fmt.Errorf("put function %s: %w", name, err)
	}
	var code bytes.Buffer
	w := zip.NewWriter(&code)
	header := &zip.FileHeader{Name: "bootstrap", Method: zip.Deflate}
	header.SetMode(0o755)
	file, err := w.CreateHeader(header)
	if err == nil {
		_, err = file.Write(binary)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("put function %s: %w", name, err)
	}
	_, err = functions.CreateFunction(ctx, &lambda.CreateFunctionInput{
		FunctionName: &name, Runtime: types.RuntimeProvidedal2023, Handler: new("bootstrap"), Timeout: new(int32(ToolTimeout / time.Second)),
		Role: new("arn:aws:iam::000000000000:role/" + name), Code: &types.FunctionCode{ZipFile: code.Bytes()},
	})
	if _, there := errors.AsType[*types.ResourceConflictException](err); err != nil && !there {
		return fmt.Errorf("put function %s: %w", name, err)
	}
	return nil
}
