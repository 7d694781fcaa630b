// Package policy judges requests by the policies of a role as IAM does, for what the
// local engine does not enforce: conditions on keys that it does not know. Its rule:
// what it cannot judge is an error, never an answer.
package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Document is a policy of a role, read by [Parse].
type Document struct{ statements []Statement }

// Statement is one statement of a policy.
type Statement struct {
	Effect    string
	Actions   []string
	Resources []string
	// Conditions are the operators, the keys of each, and what it compares them with.
	Conditions map[string]map[string][]string
}

// Request is what a caller asks.
type Request struct {
	// Action is a service and an action, dynamodb:GetItem.
	Action string
	// Resource is an ARN without wildcards, or "*" for an action that knows none.
	Resource string
	// Context holds the values of condition keys, by key.
	Context map[string][]string
}

// operators compare one value of the request with one of the policy. An ARN operator
// is a pattern here; nothing that the roles hold needs its split into segments.
var operators = map[string]func(actual, expected string) bool{
	"StringEquals": func(actual, expected string) bool { return actual == expected },
	"StringLike":   like,
	"ArnEquals":    like,
	"ArnLike":      like,
	"Bool":         strings.EqualFold,
}

const forAllValues = "ForAllValues:"

// Parse reads a policy's JSON. It refuses elements and condition operators that
// [Document.Allows] could not judge.
func Parse(text []byte) (Document, error) {
	var raw struct {
		Statement oneOrMany[map[string]json.RawMessage]
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return Document{}, fmt.Errorf("parse policy: %w", err)
	}
	var d Document
	for i, elements := range raw.Statement {
		s, err := parseStatement(elements)
		if err != nil {
			return Document{}, fmt.Errorf("parse statement %d of policy: %w", i+1, err)
		}
		d.statements = append(d.statements, s)
	}
	return d, nil
}

func parseStatement(elements map[string]json.RawMessage) (Statement, error) {
	var s Statement
	var actions, resources oneOrMany[string]
	var conditions map[string]map[string]oneOrMany[string]
	into := map[string]any{
		"Effect": &s.Effect, "Action": &actions, "Resource": &resources, "Condition": &conditions, "Sid": new(string),
	}
	for name, value := range elements {
		target := into[name]
		if target == nil {
			return s, fmt.Errorf("element %s is not known here", name)
		}
		if err := json.Unmarshal(value, target); err != nil {
			return s, fmt.Errorf("element %s: %w", name, err)
		}
	}
	if s.Effect != "Allow" && s.Effect != "Deny" || len(actions) == 0 || len(resources) == 0 {
		return s, fmt.Errorf("want effect, actions and resources, got %q, %v, %v", s.Effect, actions, resources)
	}
	s.Actions, s.Resources, s.Conditions = actions, resources, map[string]map[string][]string{}
	for operator, keys := range conditions {
		if operators[strings.TrimPrefix(operator, forAllValues)] == nil {
			return s, fmt.Errorf("condition operator %s is not known here", operator)
		}
		s.Conditions[operator] = map[string][]string{}
		for key, values := range keys {
			s.Conditions[operator][key] = values
		}
	}
	return s, nil
}

// oneOrMany is a JSON value, or a list of such.
type oneOrMany[V any] []V

// UnmarshalJSON implements [json.Unmarshaler].
func (o *oneOrMany[V]) UnmarshalJSON(data []byte) error {
	var many []V
	if err := json.Unmarshal(data, &many); err == nil {
		*o = many
		return nil
	}
	var one V
	if err := json.Unmarshal(data, &one); err != nil {
		return err
	}
	*o = oneOrMany[V]{one}
	return nil
}

// Statements are the policy's statements, in order.
func (d Document) Statements() []Statement { return d.statements }

// Allows says whether the policy alone lets the request pass: a statement allows it,
// and none denies it.
func (d Document) Allows(r Request) bool {
	matching := func(effect string) bool {
		return slices.ContainsFunc(d.statements, func(s Statement) bool { return s.Effect == effect && s.matches(r) })
	}
	return !matching("Deny") && matching("Allow")
}

func (s Statement) matches(r Request) bool {
	action := slices.ContainsFunc(s.Actions, func(a string) bool { return like(strings.ToLower(r.Action), strings.ToLower(a)) })
	resource := slices.ContainsFunc(s.Resources, func(pattern string) bool { return like(r.Resource, pattern) })
	if !action || !resource {
		return false
	}
	for operator, keys := range s.Conditions {
		for key, expected := range keys {
			if !holds(operator, r.Context[key], expected) {
				return false
			}
		}
	}
	return true
}

// holds judges one condition. A key that the request lacks fails it, except under
// ForAllValues, which no value can break.
func holds(operator string, actual, expected []string) bool {
	base, all := strings.CutPrefix(operator, forAllValues)
	compare := operators[base]
	if !all && len(actual) == 0 {
		return false
	}
	for _, value := range actual {
		if !slices.ContainsFunc(expected, func(e string) bool { return compare(value, e) }) {
			return false
		}
	}
	return true
}

// like matches IAM's wildcards: * is any text, ? any one character.
func like(text, pattern string) bool {
	// path.Match stops * at a slash, IAM does not; no ARN holds this letter.
	const slash = "\x00"
	escape := strings.NewReplacer("/", slash, "[", `\[`, "]", `\]`, `\`, `\\`)
	ok, err := path.Match(escape.Replace(pattern), strings.ReplaceAll(text, "/", slash))
	return err == nil && ok
}

// Keys are the condition keys that the policy asks about, sorted.
func (d Document) Keys() []string {
	keys := map[string]bool{}
	for _, s := range d.statements {
		for _, of := range s.Conditions {
			for key := range of {
				keys[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}
