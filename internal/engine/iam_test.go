package engine_test

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/engine/policy"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// deployedRole is a role of the deployed stack, and somebody who has assumed it.
type deployedRole struct {
	name     string // as the stack's code has it, reap-role
	physical string
	policy   policy.Document
	caller   caller
	env      []string // credentials, for a process
}

// iamWorld is the stack on an engine that enforces IAM.
type iamWorld struct {
	*engine.Engine
	out   engine.Outputs
	roles []deployedRole
	admin caller
	// operator has what GrantOperator gives; it is no function's role.
	operator deployedRole
}

// TestIAM asks the engine, which enforces the roles of the deployed stack: every call
// that a role's policy allows passes, on every resource that it names, and every other
// is denied. What the engine cannot enforce, because it knows neither the condition key
// nor the resource, is judged by [policy.Document.Allows] on the deployed policy.
func TestIAM(t *testing.T) {
	w := deployEnforcing(t)
	t.Run("every grant has a row, and every row a grant", w.testRows)
	t.Run("the allowed pass and the others are denied", w.testCalls)
	t.Run("every grant can be used", w.testGrants)
	t.Run("what nobody may is denied", w.testNever)
	t.Run("conditions hold", w.testConditions)
	t.Run("an operator may use every command of the tool", w.testOperator)
	t.Run("a function has its role's permissions and no others", w.testFunction)
}

func deployEnforcing(t *testing.T) *iamWorld {
	t.Helper()
	e := enginetest.Own(t, engine.Options{IAM: true})
	out, err := e.Deploy(t.Context(), engine.Deployment{})
	enginetest.Require(t, err)
	w := &iamWorld{Engine: e, out: out, admin: newCaller(e.Config(), out)}
	stack, err := cloudformation.NewFromConfig(e.Config()).DescribeStackResources(t.Context(), &cloudformation.DescribeStackResourcesInput{StackName: new(names.Stack)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range stack.StackResources {
		if *r.ResourceType == "AWS::IAM::Role" {
			w.roles = append(w.roles, w.assume(t, *r.LogicalResourceId, *r.PhysicalResourceId))
		}
	}
	i := slices.IndexFunc(w.roles, func(r deployedRole) bool { return r.name == "operator-role" })
	if i < 0 {
		t.Fatal("the local variant has no operator")
	}
	w.operator = w.roles[i]
	w.roles = slices.Delete(w.roles, i, i+1)
	w.admin.prepare(t)
	return w
}

var logicalHash = regexp.MustCompile(`role[0-9A-F]{8}$`)

// assume becomes a role. Its trust, which is its service's alone, is widened to this
// account for that; its policies stay as they were deployed.
func (w *iamWorld) assume(t *testing.T, logical, name string) deployedRole {
	t.Helper()
	client := iam.NewFromConfig(w.Config())
	text, err := client.GetRolePolicy(t.Context(), &iam.GetRolePolicyInput{RoleName: &name, PolicyName: new("own")})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := url.PathUnescape(*text.PolicyDocument)
	if err != nil {
		t.Fatal(err)
	}
	document, err := policy.Parse([]byte(plain))
	if err != nil {
		t.Fatalf("%s: %v", logical, err)
	}
	trust := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::` + engine.Account + `:root"},"Action":"sts:AssumeRole"}]}`
	if _, err := client.UpdateAssumeRolePolicy(t.Context(), &iam.UpdateAssumeRolePolicyInput{RoleName: &name, PolicyDocument: &trust}); err != nil {
		t.Fatal(err)
	}
	assumed, err := sts.NewFromConfig(w.Config()).AssumeRole(t.Context(), &sts.AssumeRoleInput{
		RoleArn: new("arn:aws:iam::" + engine.Account + ":role/" + name), RoleSessionName: new("test"),
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := w.Config()
	c := assumed.Credentials
	cfg.Credentials = credentials.NewStaticCredentialsProvider(*c.AccessKeyId, *c.SecretAccessKey, *c.SessionToken)
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return deployedRole{name: logicalHash.ReplaceAllString(logical, "-role"), physical: name, policy: document, caller: newCaller(cfg, w.out), env: []string{
		"AWS_ACCESS_KEY_ID=" + *c.AccessKeyId, "AWS_SECRET_ACCESS_KEY=" + *c.SecretAccessKey, "AWS_SESSION_TOKEN=" + *c.SessionToken,
	}}
}

// testRows: a new action or condition key of a role fails until somebody has said how
// it is tried, and what stands in no policy any more has no row.
func (w *iamWorld) testRows(t *testing.T) {
	granted, keys := map[string]bool{}, map[string]bool{}
	for _, role := range w.roles {
		for _, s := range role.policy.Statements() {
			for _, action := range s.Actions {
				granted[action] = true
				if strings.Contains(action, "*") {
					t.Errorf("%s may %s: a wildcard in an action", role.name, action)
				}
				if _, ok := calls[action]; !ok {
					t.Errorf("%s may %s, for which no row says how to try it", role.name, action)
				}
			}
		}
		for _, key := range role.policy.Keys() {
			keys[key] = true
			if len(conditioned[key].holds) == 0 || len(conditioned[key].fails) == 0 {
				t.Errorf("%s has a condition on %s, for which no row has values", role.name, key)
			}
		}
	}
	for action, c := range calls {
		if !granted[action] && !c.never {
			t.Errorf("a row tries %s, which no role may", action)
		}
	}
	for key := range conditioned {
		if !keys[key] {
			t.Errorf("a row has values for %s, on which no condition is", key)
		}
	}
}

// testCalls tries every action on every resource that any role has for it, and on
// foreign ones, as every role.
func (w *iamWorld) testCalls(t *testing.T) {
	allowed, denied := 0, 0
	for _, role := range w.roles {
		for _, action := range slices.Sorted(maps.Keys(calls)) {
			for _, resource := range w.resources(action) {
				request := policy.Request{Action: action, Resource: resource, Context: holding()}
				want := role.policy.Allows(request)
				if calls[action].do == nil {
					continue // the policy is judged by itself, in testGrants, testConditions and testNever
				}
				err := calls[action].do(t.Context(), role.caller, resource)
				switch refused := isDenied(err); {
				case want && refused:
					t.Errorf("%s may %s on %s, and is refused: %v", role.name, action, resource, err)
				case !want && !refused:
					t.Errorf("%s may not %s on %s, and is not refused: %v", role.name, action, resource, err)
				case want:
					allowed++
				default:
					denied++
				}
			}
		}
	}
	if allowed < 50 || denied < 200 {
		t.Errorf("%d calls passed and %d were denied: the table has lost its rows", allowed, denied)
	}
	t.Logf("%d allowed calls passed, %d forbidden ones were denied by the engine", allowed, denied)
}

// resources are what an action is tried on: what any role has for it, with something
// in place of each wildcard, and what the row adds.
func (w *iamWorld) resources(action string) []string {
	all := map[string]bool{}
	for _, role := range w.roles {
		for _, s := range role.policy.Statements() {
			if slices.Contains(s.Actions, action) {
				for _, pattern := range s.Resources {
					all[sample(pattern)] = true
				}
			}
		}
	}
	if foreign := calls[action].foreign; foreign != nil {
		for _, resource := range foreign(w.out) {
			all[resource] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// sample is one resource of a pattern.
func sample(pattern string) string {
	if pattern == "*" {
		return pattern
	}
	return strings.ReplaceAll(pattern, "*", "sample")
}

// holding gives every condition key a value with which conditions hold.
func holding() map[string][]string {
	values := map[string][]string{}
	for key, row := range conditioned {
		values[key] = row.holds[:1]
	}
	return values
}

// testNever: the rules of the design that no change of a grant may break, by the
// deployed policies, and by the engine where it can tell.
func (w *iamWorld) testNever(t *testing.T) {
	for _, rule := range never(w.out) {
		t.Run(rule.name, func(t *testing.T) {
			for _, role := range w.roles {
				if slices.Contains(rule.but, role.name) {
					continue
				}
				for _, resource := range rule.resources {
					if role.policy.Allows(policy.Request{Action: rule.action, Resource: resource, Context: rule.context}) {
						t.Errorf("%s may %s on %s", role.name, rule.action, resource)
					}
					do := rule.do
					if rule.context == nil {
						do = calls[rule.action].do
					}
					if do == nil {
						continue
					}
					if err := do(t.Context(), role.caller, resource); !isDenied(err) {
						t.Errorf("%s is let %s on %s: %v", role.name, rule.action, resource, err)
					}
				}
			}
			for _, name := range rule.but {
				if !slices.ContainsFunc(w.roles, func(r deployedRole) bool { return r.name == name }) {
					t.Errorf("there is no %s", name)
				}
			}
		})
	}
}

// testGrants: every statement can be met, by a request on what it names.
func (w *iamWorld) testGrants(t *testing.T) {
	for _, role := range w.roles {
		for _, s := range role.policy.Statements() {
			for _, action := range s.Actions {
				for _, pattern := range s.Resources {
					if !role.policy.Allows(policy.Request{Action: action, Resource: sample(pattern), Context: holding()}) {
						t.Errorf("%s may %s on %s by a statement that no request meets", role.name, action, pattern)
					}
				}
			}
		}
	}
}

// testConditions judges each conditional statement with values that hold, that do not,
// and without any.
func (w *iamWorld) testConditions(t *testing.T) {
	tried := 0
	for _, role := range w.roles {
		for _, s := range role.policy.Statements() {
			for operator, keys := range s.Conditions {
				for key := range keys {
					w.tryCondition(t, role, s, operator, key)
					tried++
				}
			}
		}
	}
	if tried < len(conditioned) {
		t.Errorf("%d conditions were tried, want at least %d", tried, len(conditioned))
	}
}

func (w *iamWorld) tryCondition(t *testing.T, role deployedRole, s policy.Statement, operator, key string) {
	t.Helper()
	for _, action := range s.Actions {
		request := policy.Request{Action: action, Resource: sample(s.Resources[0]), Context: holding()}
		judge := func(values []string, want bool) {
			t.Helper()
			request.Context[key] = values
			if got := role.policy.Allows(request); got != want {
				t.Errorf("%s: %s with %s %v: allowed %v, want %v", role.name, action, key, values, got, want)
			}
		}
		for _, value := range conditioned[key].holds {
			judge([]string{value}, true)
		}
		for _, value := range conditioned[key].fails {
			judge([]string{value}, false)
			judge([]string{conditioned[key].holds[0], value}, false)
		}
		if !strings.HasPrefix(operator, "ForAllValues:") {
			judge(nil, false)
		}
	}
}

// testFunction: a sweep works with the credentials of its role, and no longer once the
// role has lost its policy, so it has no others.
func (w *iamWorld) testFunction(t *testing.T) {
	sweep := func() string {
		answer, err := w.admin.invoke(t.Context(), w.out[names.OutReapFunction], []byte(`{"mode":"plan"}`))
		if err != nil {
			t.Fatal(err)
		}
		if answer.FunctionError == nil {
			return ""
		}
		return string(answer.Payload)
	}
	if said := sweep(); said != "" {
		t.Fatalf("a sweep under its role: %s", said)
	}
	i := slices.IndexFunc(w.roles, func(r deployedRole) bool { return r.name == "reap-role" })
	if _, err := w.admin.identity.DeleteRolePolicy(t.Context(), &iam.DeleteRolePolicyInput{RoleName: &w.roles[i].physical, PolicyName: new("own")}); err != nil {
		t.Fatal(err)
	}
	if said := sweep(); !strings.Contains(said, "AccessDenied") {
		t.Errorf("a sweep without its role's policy says %q, want that it is denied", said)
	}
}
