package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Config is the SDK configuration for the engine: its endpoint, its region, and
// credentials that are nobody's. ECS clients need [Engine.ECSEndpoint] as their
// BaseEndpoint.
func (e *Engine) Config() aws.Config {
	return aws.Config{
		Region:       Region,
		BaseEndpoint: &e.Endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: key, SecretAccessKey: key, Source: "engine"}, nil
		}),
		HTTPClient: &http.Client{Transport: wholeBody{e.transport()}},
	}
}

// transport reaches this machine alone, and trusts the engine's certificate, if it has one.
func (e *Engine) transport() *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute}
	HereAlone(t)
	if e.tls != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: e.tls.Pool}
	}
	return t
}

// wholeBody sends bodies that nothing else holds. A server as fast as one on
// loopback may answer before the SDK's body is closed; the transport then reports
// a closed connection for a request that was served, about once in ten thousand.
type wholeBody struct{ next http.RoundTripper }

func (w wholeBody) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body == nil {
		return w.next.RoundTrip(request)
	}
	body, err := io.ReadAll(request.Body)
	_ = request.Body.Close() // it was read to its end
	if err != nil {
		return nil, fmt.Errorf("read request body: %w", err)
	}
	whole := request.Clone(request.Context())
	whole.Body = io.NopCloser(bytes.NewReader(body))
	whole.ContentLength = int64(len(body))
	return w.next.RoundTrip(whole)
}

// CreateTable makes a table as internal/names describes it, under the given name,
// for tests that need a table and not the stack.
func CreateTable(ctx context.Context, client *dynamodb.Client, name string, t names.Table) error {
	input := &dynamodb.CreateTableInput{
		TableName:            &name,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: attributes(t),
		KeySchema:            keySchema(names.PK, names.SK),
	}
	for _, index := range t.Indexes {
		projection := &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly}
		if len(index.Include) > 0 {
			projection = &types.Projection{ProjectionType: types.ProjectionTypeInclude, NonKeyAttributes: index.Include}
		}
		input.GlobalSecondaryIndexes = append(input.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName: &index.Name, KeySchema: keySchema(index.PK, index.SK), Projection: projection,
		})
	}
	if _, err := client.CreateTable(ctx, input); err != nil {
		return fmt.Errorf("create table %s: %w", name, err)
	}
	return nil
}

// attributes lists each key attribute of a table and its indexes once.
func attributes(t names.Table) []types.AttributeDefinition {
	all := []names.Attribute{names.PK, names.SK}
	for _, index := range t.Indexes {
		all = append(all, index.PK, index.SK)
	}
	seen := map[string]bool{}
	var defined []types.AttributeDefinition
	for _, a := range all {
		if seen[a.Name] {
			continue
		}
		seen[a.Name] = true
		defined = append(defined, types.AttributeDefinition{
			AttributeName: &a.Name, AttributeType: types.ScalarAttributeType(a.Type),
		})
	}
	return defined
}

func keySchema(pk, sk names.Attribute) []types.KeySchemaElement {
	return []types.KeySchemaElement{
		{AttributeName: &pk.Name, KeyType: types.KeyTypeHash},
		{AttributeName: &sk.Name, KeyType: types.KeyTypeRange},
	}
}
