package sandkeeper

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// The parameters of a bundle's template: where its zips have been put.
const (
	paramCodeBucket = "CodeBucket"
	paramCodePrefix = "CodePrefix"
)

// synthesizer is how a stack is deployed. A bundle's asks for nothing that cdk bootstrap
// makes.
func (p Props) synthesizer() awscdk.IStackSynthesizer {
	if p.Bundle == "" {
		return nil
	}
	return awscdk.NewDefaultStackSynthesizer(&awscdk.DefaultStackSynthesizerProps{GenerateBootstrapVersionRule: new(false)})
}

// code is a function's binary: an asset of CDK's, or a zip in the bundle's directory, which
// somebody puts into a bucket. A zip's name holds the hash of its bytes, so that a new one
// is an update.
func (k *Keeper) code(f names.Function) awslambda.Code {
	dir := filepath.Join(k.props.Dist, string(f))
	binary, err := os.ReadFile(filepath.Join(dir, "bootstrap"))
	if err != nil {
		panic(fmt.Errorf("function %s: no binary, run make build: %w", f, err))
	}
	if k.props.Bundle == "" {
		return awslambda.Code_FromAsset(&dir, nil)
	}
	packed := packed(binary)
	sum := sha256.Sum256(packed)
	name := string(f) + "-" + hex.EncodeToString(sum[:8]) + ".zip"
	if err := os.MkdirAll(k.props.Bundle, 0o755); err != nil {
		panic(fmt.Errorf("bundle: %w", err))
	}
	if err := os.WriteFile(filepath.Join(k.props.Bundle, name), packed, 0o644); err != nil {
		panic(fmt.Errorf("bundle: %w", err))
	}
	bucket, prefix := k.codePlace()
	return awslambda.Code_FromBucketV2(bucket, join(prefix, name), nil)
}

// packed is a zip of one binary, the same bytes from the same binary.
func packed(binary []byte) []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	header := &zip.FileHeader{Name: "bootstrap", Method: zip.Deflate}
	header.SetMode(0o755)
	file, err := w.CreateHeader(header)
	if err == nil {
		_, err = file.Write(binary)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(fmt.Errorf("bundle: %w", err)) // a buffer takes everything
	}
	return out.Bytes()
}

// codePlace is where a bundle's zips are said to be.
func (k *Keeper) codePlace() (awss3.IBucket, string) {
	if k.codeBucket == nil {
		bucket := k.parameter(paramCodeBucket, &awscdk.CfnParameterProps{
			Description: new("Bucket with the zips, in the stack's Region"), AllowedPattern: new("^[a-z0-9][a-z0-9.-]{2,62}$"),
		})
		k.codePrefix = *k.parameter(paramCodePrefix, &awscdk.CfnParameterProps{
			Description: new("What their keys begin with, as sandkeeper/"), Default: "", AllowedPattern: new("^([A-Za-z0-9._/-]+/)?$"),
		})
		k.codeBucket = awss3.Bucket_FromBucketName(k.Construct, new("code"), bucket)
	}
	return k.codeBucket, k.codePrefix
}

// parameter declares a parameter of the template under its own name.
func (k *Keeper) parameter(id string, props *awscdk.CfnParameterProps) *string {
	p := awscdk.NewCfnParameter(k.Construct, &id, props)
	p.OverrideLogicalId(&id)
	return p.ValueAsString()
}
