package ddb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// definitionRow is one version of a definition, or the newest of its name.
type definitionRow struct {
	head
	Name       string `dynamodbav:"name"`
	Version    int    `dynamodbav:"version"`
	Definition string `dynamodbav:"definition"` // JSON
}

// The keys of definitions. Every version is an item of the catalogue, which is listed in
// the order of names and versions; the newest stands once more under its name.
const (
	pkCatalogue  = "definitions"
	pkDefinition = "definition#" // and the name
	skNewest     = "newest"
)

// maxStored is the longest definition that is kept, bytes: an item of DynamoDB holds no
// more than 400 KiB.
const maxStored = 350 << 10

func skVersion(name string, version int) string {
	return fmt.Sprintf("%s#%010d", core.KeyToken(name), version)
}

var _ core.Definitions = (*Sandboxes)(nil)

// Definition reads a version of a name, or the newest.
func (s *Sandboxes) Definition(ctx context.Context, name string, version int) (core.Definition, error) {
	at := key(pkDefinition+core.KeyToken(name), skNewest)
	if version != 0 {
		at = key(pkCatalogue, skVersion(name, version))
	}
	it, err := get(ctx, s.client, s.table, at)
	if err == nil && len(it) == 0 {
		err = core.ErrNotFound
	}
	if err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", core.DefinitionRef(name, version), err)
	}
	d, err := decodeDefinition(it)
	if err == nil && (d.Name != name || version != 0 && d.Version != version) {
		err = fmt.Errorf("it is %s", core.DefinitionRef(d.Name, d.Version))
	}
	if err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", core.DefinitionRef(name, version), err)
	}
	return d, nil
}

func decodeDefinition(it item) (core.Definition, error) {
	var row definitionRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Definition{}, err
	}
	if err := row.check(); err != nil {
		return core.Definition{}, err
	}
	return core.ParseDefinition([]byte(row.Definition))
}

// ListDefinitions lists every version that is kept, by name and version.
func (s *Sandboxes) ListDefinitions(ctx context.Context) ([]core.Definition, error) {
	in := &dynamodb.QueryInput{TableName: &s.table, ConsistentRead: new(true)}
	all, err := query(ctx, s.client, in, expression.Key(names.PK.Name).Equal(expression.Value(pkCatalogue)), decodeDefinition)
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	return all, nil
}

// PutDefinition keeps a version of a definition, once: it may be put again as it is, and
// is refused as "version" where another stands under its number. Where it is newer than
// all that are kept, its name means it from then on. Order: the version, then the name; a
// crash between leaves a version that is found by its number, and putting it again
// finishes.
func (s *Sandboxes) PutDefinition(ctx context.Context, d core.Definition) error {
	if err := d.Validate(); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Ref(), err)
	}
	if len(text) > maxStored {
		return fmt.Errorf("put definition %s: want at most %d bytes, got %d", d.Ref(), maxStored, len(text))
	}
	version := newUpsert()
	version.need(gone("definition").Or(is("definition", string(text))))
	if err := s.putDefinition(ctx, version, d, string(text), key(pkCatalogue, skVersion(d.Name, d.Version))); err != nil {
		return err
	}
	newest := newUpsert()
	newest.need(gone("version").Or(expression.Name("version").LessThan(expression.Value(d.Version))))
	err = s.putDefinition(ctx, newest, d, string(text), key(pkDefinition+core.KeyToken(d.Name), skNewest))
	if core.Refused(err) {
		return nil // a newer one has the name, or this one
	}
	return err
}

func (s *Sandboxes) putDefinition(ctx context.Context, c *change, d core.Definition, text string, at item) error {
	c.set("version", d.Version)
	c.set("name", d.Name)
	c.set("definition", text)
	in, err := c.input(s.table, at)
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Ref(), err)
	}
	_, err = send(ctx, s.client.UpdateItem, in)
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		return &core.RefusedError{Op: "put", Record: "definition " + d.Ref(), Why: "version"}
	}
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Ref(), err)
	}
	return nil
}
