package core

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// SecretPlan names a secret, and where its value is kept. It is written as an object, or
// as its name alone where the container's environment holds the value already.
type SecretPlan struct {
	Name string `json:"name"`
	// From is the ARN of a Secrets Manager secret or of an SSM parameter.
	From string `json:"from,omitempty"`
}

// MarshalJSON writes the name alone where that says it all.
func (s SecretPlan) MarshalJSON() ([]byte, error) {
	if s.From == "" {
		return json.Marshal(s.Name)
	}
	type plain SecretPlan
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads either form, and refuses members that it does not know.
func (s *SecretPlan) UnmarshalJSON(data []byte) error {
	*s = SecretPlan{}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte(`"`)) {
		return json.Unmarshal(data, &s.Name)
	}
	type plain SecretPlan
	return DecodeStrict(data, (*plain)(s))
}

// PolicyPlan says what an agent may do; what no rule matches is as Default says.
type PolicyPlan struct {
	Commands RulePlan `json:"commands,omitzero"` // globs of first words
	Write    RulePlan `json:"write,omitzero"`    // globs of paths below the workspace
	Reach    RulePlan `json:"reach,omitzero"`    // hosts, *.name for all below one
	Default  Verdict  `json:"default,omitempty"` // empty: deny where something is allowed by a list, else allow
}

// RulePlan is what one kind of act is judged by. Deny wins.
type RulePlan struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// Verdict is what a policy says of an act.
type Verdict string

// By default the lists tell what becomes of what no rule matches.
const (
	VerdictDefault Verdict = ""
	VerdictAllow   Verdict = "allow"
	VerdictDeny    Verdict = "deny"
)

// HookPlan names the Lambda functions that hear of a sandbox's life. Ready is waited for,
// and its failure fails the start; the others are only told.
type HookPlan struct {
	Ready     string `json:"ready,omitempty"`
	Error     string `json:"error,omitempty"`
	Destroyed string `json:"destroyed,omitempty"`
	File      string `json:"file,omitempty"`
}

// FileEventsPlan says whether changes of the workspace are written down.
type FileEventsPlan struct {
	Enabled      bool     `json:"enabled,omitempty"`
	Exclude      []string `json:"exclude,omitempty"`      // globs, beside the default ones
	MaxDiffBytes int64    `json:"maxDiffBytes,omitempty"` // of one change; zero: no diffs are cut short but by the default
}

// ToolPlan is a tool that an agent may call: a Lambda function behind a name.
type ToolPlan struct {
	Name           string          `json:"name"`
	Description    string          `json:"description,omitempty"`
	InputSchema    json.RawMessage `json:"inputSchema,omitempty"` // of its arguments, an object
	Function       string          `json:"function"`              // name or ARN
	TimeoutSeconds int64           `json:"timeoutSeconds,omitempty"`
}

// SnapshotPolicy says when a native snapshot is taken.
type SnapshotPolicy string

// By default none is taken.
const (
	SnapshotsDefault    SnapshotPolicy = "" // none
	SnapshotsNone       SnapshotPolicy = "none"
	SnapshotsAfterSetup SnapshotPolicy = "after-setup"
	SnapshotsAfterRun   SnapshotPolicy = "after-run"
)

// SnapshotPolicies is the closed set.
var SnapshotPolicies = []SnapshotPolicy{SnapshotsDefault, SnapshotsNone, SnapshotsAfterSetup, SnapshotsAfterRun}

// The limits of what a definition reaches.
const (
	maxRules       = 200      // of one list of a policy, or of excluded globs
	maxDiff        = 1 << 20  // bytes
	maxTools       = 50       // of a definition
	maxToolText    = 4 << 10  // bytes of a description
	maxToolSchema  = 16 << 10 // bytes
	maxToolSeconds = int64(MaxToolTimeout / time.Second)
)

var (
	toolName     = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	functionName = regexp.MustCompile(`^(arn:aws[a-z-]*:lambda:[a-z0-9-]*:[0-9]*:function:)?[A-Za-z0-9_-]{1,140}(:[A-Za-z0-9$_-]{1,128})?$`)
	secretARN    = regexp.MustCompile(`^arn:aws[a-z-]*:(secretsmanager:[a-z0-9-]*:[0-9]*:secret:|ssm:[a-z0-9-]*:[0-9]*:parameter/)[A-Za-z0-9/_+=.@-]{1,512}$`)
)

// permissionTool is the tool that every agent with a policy has.
const permissionTool = "permission"

// reserved begins the names of variables that are Sandkeeper's own.
const reserved = "SANDKEEPER_"

func (d Definition) secretNames() []string {
	var names []string
	for _, s := range d.Secrets {
		names = append(names, s.Name)
	}
	return names
}

func (d Definition) checkSecrets() error {
	if len(d.Secrets) > maxNames {
		return fmt.Errorf("secrets: want at most %d, got %d", maxNames, len(d.Secrets))
	}
	for _, s := range d.Secrets {
		switch {
		case !secretName.MatchString(s.Name):
			return fmt.Errorf("secrets: want names of variables, got %.140q", s.Name)
		case s.From == "":
		case !secretARN.MatchString(s.From):
			return fmt.Errorf("secrets %s: from: want the ARN of a Secrets Manager secret or of an SSM parameter, got %.140q", s.Name, s.From)
		case strings.HasPrefix(s.Name, reserved):
			return fmt.Errorf("secrets %s: want a name that does not begin with %s", s.Name, reserved)
		}
	}
	return once("secrets", d.secretNames())
}

func (d Definition) checkTools() error {
	if len(d.Tools) > maxTools {
		return fmt.Errorf("tools: want at most %d, got %d", maxTools, len(d.Tools))
	}
	var names []string
	for _, t := range d.Tools {
		if err := t.check(); err != nil {
			return fmt.Errorf("tools %.80q: %w", t.Name, err)
		}
		names = append(names, t.Name)
	}
	return once("tools", names)
}

func (t ToolPlan) check() error {
	switch {
	case !toolName.MatchString(t.Name):
		return fmt.Errorf("name: want %s", toolName)
	case t.Name == permissionTool:
		return fmt.Errorf("name: %q is the tool that answers from the policy; want another", permissionTool)
	case len(t.Description) > maxToolText:
		return fmt.Errorf("description: want at most %d bytes, got %d", maxToolText, len(t.Description))
	case len(t.InputSchema) > maxToolSchema:
		return fmt.Errorf("inputSchema: want at most %d bytes, got %d", maxToolSchema, len(t.InputSchema))
	case len(t.InputSchema) > 0 && !isObject(t.InputSchema):
		return errors.New("inputSchema: want a JSON object")
	case !describesObject(t.InputSchema):
		return errors.New(`inputSchema: want "type": "object", since arguments are an object`)
	case !functionName.MatchString(t.Function):
		return fmt.Errorf("function: want the name or ARN of a Lambda function, got %.200q", t.Function)
	case t.TimeoutSeconds < 0 || t.TimeoutSeconds > maxToolSeconds:
		return fmt.Errorf("timeoutSeconds: want 0 to %d, got %d", maxToolSeconds, t.TimeoutSeconds)
	}
	return nil
}

func isObject(text json.RawMessage) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(text, &members) == nil && members != nil
}

// describesObject reports whether a schema, where it says a type, says that of an object.
func describesObject(schema json.RawMessage) bool {
	var members struct {
		Type json.RawMessage `json:"type"`
	}
	return len(schema) == 0 || json.Unmarshal(schema, &members) == nil && (members.Type == nil || string(members.Type) == `"object"`)
}

func (p PolicyPlan) check() error {
	if !slices.Contains([]Verdict{VerdictDefault, VerdictAllow, VerdictDeny}, p.Default) {
		return fmt.Errorf("policy.default: want allow or deny, got %.80q", p.Default)
	}
	return cmp.Or(p.Commands.check("policy.commands"), p.Write.check("policy.write"), p.Reach.check("policy.reach"))
}

func (r RulePlan) check(what string) error {
	return cmp.Or(checkGlobs(what+".allow", r.Allow), checkGlobs(what+".deny", r.Deny))
}

// Empty reports whether a policy allows everything.
func (p PolicyPlan) Empty() bool {
	rules := 0
	for _, r := range []RulePlan{p.Commands, p.Write, p.Reach} {
		rules += len(r.Allow) + len(r.Deny)
	}
	return rules == 0 && p.Default != VerdictDeny
}

func checkGlobs(what string, globs []string) error {
	if len(globs) > maxRules {
		return fmt.Errorf("%s: want at most %d, got %d", what, maxRules, len(globs))
	}
	for _, g := range globs {
		if g == "" || len(g) > maxText || strings.ContainsRune(g, 0) {
			return fmt.Errorf("%s: want 1 to %d bytes each, got %d", what, maxText, len(g))
		}
	}
	return nil
}

func (h HookPlan) check() error {
	for _, hook := range []struct{ name, function string }{{"ready", h.Ready}, {"error", h.Error}, {"destroyed", h.Destroyed}, {"file", h.File}} {
		if hook.function != "" && !functionName.MatchString(hook.function) {
			return fmt.Errorf("hooks.%s: want the name or ARN of a Lambda function, got %.200q", hook.name, hook.function)
		}
	}
	return nil
}

func (e FileEventsPlan) check() error {
	if e.MaxDiffBytes < 0 || e.MaxDiffBytes > maxDiff {
		return fmt.Errorf("fileEvents.maxDiffBytes: want 0 to %d, got %d", maxDiff, e.MaxDiffBytes)
	}
	return checkGlobs("fileEvents.exclude", e.Exclude)
}

// bind are the tools that a run may call, names being those that it asks for; nil: all.
func (d Definition) bind(names []string) ([]ToolBinding, error) {
	var out []ToolBinding
	for _, t := range d.Tools {
		if names == nil || slices.Contains(names, t.Name) {
			out = append(out, ToolBinding{t.Name, t.Function, t.TimeoutSeconds})
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(d.Tools, func(t ToolPlan) bool { return t.Name == name }) {
			return nil, invalid("bad-request", "tools: want names of the definition's tools, got %.80q", name)
		}
	}
	if err := once("tools", names); err != nil {
		return nil, invalid("bad-request", "%v", err)
	}
	return out, nil
}
