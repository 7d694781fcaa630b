package policy_test

import (
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/engine/policy"
)

const role = `{"Version":"2012-10-17","Statement":[
	{"Effect":"Allow","Action":["dynamodb:GetItem","dynamodb:Put*"],"Resource":"arn:aws:dynamodb:r:a:table/runs"},
	{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*/logs/*"},
	{"Effect":"Deny","Action":"s3:*","Resource":"arn:aws:s3:::b/secret/*"},
	{"Effect":"Allow","Action":"dynamodb:DeleteItem","Resource":"*","Condition":{"ForAllValues:StringLike":{"dynamodb:LeadingKeys":["key#*"]}}},
	{"Effect":"Allow","Action":"ecs:ListTasks","Resource":"*","Condition":{"ArnEquals":{"ecs:cluster":"arn:c"}}}]}`

func TestAllows(t *testing.T) {
	d, err := policy.Parse([]byte(role))
	if err != nil {
		t.Fatal(err)
	}
	context := func(key string, values ...string) map[string][]string { return map[string][]string{key: values} }
	for _, test := range []struct {
		name string
		r    policy.Request
		want bool
	}{
		{"what is listed", policy.Request{Action: "dynamodb:GetItem", Resource: "arn:aws:dynamodb:r:a:table/runs"}, true},
		{"an action in another case", policy.Request{Action: "dynamodb:getitem", Resource: "arn:aws:dynamodb:r:a:table/runs"}, true},
		{"an action by its wildcard", policy.Request{Action: "dynamodb:PutItem", Resource: "arn:aws:dynamodb:r:a:table/runs"}, true},
		{"another action", policy.Request{Action: "dynamodb:Scan", Resource: "arn:aws:dynamodb:r:a:table/runs"}, false},
		{"another resource", policy.Request{Action: "dynamodb:GetItem", Resource: "arn:aws:dynamodb:r:a:table/runs2"}, false},
		{"an index is not its table", policy.Request{Action: "dynamodb:GetItem", Resource: "arn:aws:dynamodb:r:a:table/runs/index/due"}, false},
		{"a wildcard crosses slashes", policy.Request{Action: "s3:GetObject", Resource: "arn:aws:s3:::b/a/b/logs/c/d"}, true},
		{"a wildcard needs what stands around it", policy.Request{Action: "s3:GetObject", Resource: "arn:aws:s3:::b/logs/c"}, false},
		{"a denial wins", policy.Request{Action: "s3:GetObject", Resource: "arn:aws:s3:::b/secret/logs/c"}, false},
		{"a condition that holds", policy.Request{Action: "ecs:ListTasks", Resource: "*", Context: context("ecs:cluster", "arn:c")}, true},
		{"a condition that does not", policy.Request{Action: "ecs:ListTasks", Resource: "*", Context: context("ecs:cluster", "arn:d")}, false},
		{"a condition on what is not there", policy.Request{Action: "ecs:ListTasks", Resource: "*"}, false},
		{"all values", policy.Request{Action: "dynamodb:DeleteItem", Resource: "x", Context: context("dynamodb:LeadingKeys", "key#1", "key#2")}, true},
		{"not all values", policy.Request{Action: "dynamodb:DeleteItem", Resource: "x", Context: context("dynamodb:LeadingKeys", "key#1", "task#2")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := d.Allows(test.r); got != test.want {
				t.Errorf("allows %+v: %v, want %v", test.r, got, test.want)
			}
		})
	}
	if keys := strings.Join(d.Keys(), " "); keys != "dynamodb:LeadingKeys ecs:cluster" {
		t.Errorf("condition keys %q", keys)
	}
}

func TestWhatCannotBeJudgedIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":             `{`,
		"an unknown element":  `{"Statement":{"Effect":"Allow","NotAction":"*","Resource":"*"}}`,
		"an unknown operator": `{"Statement":{"Effect":"Allow","Action":"a:b","Resource":"*","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}}}`,
		"no effect":           `{"Statement":{"Action":"a:b","Resource":"*"}}`,
		"no resource":         `{"Statement":{"Effect":"Allow","Action":"a:b"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := policy.Parse([]byte(text)); err == nil {
				t.Error("it is read")
			}
		})
	}
}
