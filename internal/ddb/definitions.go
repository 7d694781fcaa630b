package ddb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// definitionRow is one version of a definition, and the newest of its name.
type definitionRow struct {
	head
	Name       string `dynamodbav:"name"`
	Definition string `dynamodbav:"definition"` // JSON
}

// The keys of definitions.
const (
	pkDefinition = "definition#" // and the name
	skNewest     = "newest"
)

var _ core.Definitions = (*Sandboxes)(nil)

// Definition reads the newest version of a name.
func (s *Sandboxes) Definition(ctx context.Context, name string) (core.Definition, error) {
	it, err := get(ctx, s.client, s.table, key(pkDefinition+core.KeyToken(name), skNewest))
	if err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", name, err)
	}
	if len(it) == 0 {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", name, core.ErrNotFound)
	}
	var row definitionRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", name, err)
	}
	if err := row.check(); err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", name, err)
	}
	d, err := core.ParseDefinition([]byte(row.Definition))
	if err == nil && d.Name != name {
		err = fmt.Errorf("it is %q", d.Name)
	}
	if err != nil {
		return core.Definition{}, fmt.Errorf("read definition %s: %w", name, err)
	}
	return d, nil
}

// PutDefinition keeps a definition as the newest of its name. A version may be put again
// as it is; one that is not newer than what is kept is refused as "version".
func (s *Sandboxes) PutDefinition(ctx context.Context, d core.Definition) error {
	if err := d.Validate(); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Name, err)
	}
	pk := pkDefinition + core.KeyToken(d.Name)
	c := newUpsert()
	number := expression.Name("version")
	c.need(gone("version").Or(number.LessThan(expression.Value(d.Version)), number.Equal(expression.Value(d.Version)).And(is("definition", string(text)))))
	c.set("version", d.Version)
	c.set("name", d.Name)
	c.set("definition", string(text))
	in, err := c.input(s.table, key(pk, skNewest))
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Name, err)
	}
	_, err = send(ctx, s.client.UpdateItem, in)
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		return &core.RefusedError{Op: "put definition", Record: "definition " + d.Name, Why: "version"}
	}
	if err != nil {
		return fmt.Errorf("put definition %s: %w", d.Name, err)
	}
	return nil
}
