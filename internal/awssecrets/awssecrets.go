// Package awssecrets reads the values of secrets where AWS keeps them: Secrets Manager
// and the parameters of Systems Manager. Its rule: a value leaves it as a return value
// only, never in an error.
package awssecrets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type secretsClient interface {
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

type parametersClient interface {
	GetParameter(context.Context, *ssm.GetParameterInput, ...func(*ssm.Options)) (*ssm.GetParameterOutput, error)
}

var (
	_ secretsClient    = (*secretsmanager.Client)(nil)
	_ parametersClient = (*ssm.Client)(nil)
	_ core.Secrets     = (*Values)(nil)
)

// Values reads values.
type Values struct {
	Secrets    secretsClient
	Parameters parametersClient
}

// readWithin bounds one read.
const readWithin = 10 * time.Second

// Resolve reads the current value behind the ARN of a secret or of a parameter, which is
// decrypted: core.ErrNotFound where there is none, core.ErrNotAllowed where it may not be
// read.
func (v *Values) Resolve(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	value, err := v.read(ctx, ref)
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		switch e.ErrorCode() {
		case "ResourceNotFoundException", "ParameterNotFound":
			err = errors.Join(core.ErrNotFound, err)
		case "AccessDeniedException", "AccessDenied":
			err = errors.Join(core.ErrNotAllowed, err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("read secret %s: %w", ref, err)
	}
	return value, nil
}

func (v *Values) read(ctx context.Context, ref string) (string, error) {
	parts := strings.SplitN(ref, ":", 6) // arn:aws:service:region:account:rest
	if len(parts) < 6 || parts[0] != "arn" {
		return "", errors.New("want the ARN of a secret or of a parameter")
	}
	switch parts[2] {
	case "secretsmanager":
		out, err := v.Secrets.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &ref})
		switch {
		case err != nil:
			return "", err
		case out.SecretString == nil:
			return string(out.SecretBinary), nil
		}
		return *out.SecretString, nil
	case "ssm":
		out, err := v.Parameters.GetParameter(ctx, &ssm.GetParameterInput{Name: &ref, WithDecryption: new(true)})
		switch {
		case err != nil:
			return "", err
		case out.Parameter == nil || out.Parameter.Value == nil:
			return "", errors.New("the parameter has no value")
		}
		return *out.Parameter.Value, nil
	}
	return "", fmt.Errorf("want the ARN of a secret or of a parameter, got one of %.40q", parts[2])
}
