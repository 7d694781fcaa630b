package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/assertions"
	"github.com/aws/jsii-runtime-go"
)

func TestMain(m *testing.M) {
	code := m.Run()
	jsii.Close()
	os.Exit(code)
}

// TestTheAppSynthesizes, with the keeper in it under its own name, and what it was granted.
func TestTheAppSynthesizes(t *testing.T) {
	dist := t.TempDir()
	for _, function := range []string{"probe", "checkpoint", "reclaim", "reap", "tools", "session"} {
		if err := os.MkdirAll(filepath.Join(dist, function), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dist, function, "bootstrap"), []byte(function), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stack := newStack(awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir())}), dist)
	template := assertions.Template_FromStack(stack, nil)
	template.HasResourceProperties(new("AWS::Lambda::Function"), map[string]any{
		"FunctionName": "agents-reap",
		"Environment": map[string]any{"Variables": assertions.Match_ObjectLike(&map[string]any{
			"INSTALL": "agents", "LIMITS": `{"idleTTL":"15m","runTTL":"4h"}`, "MODE": "observe",
		})},
	})
	template.HasResourceProperties(new("AWS::CloudWatch::Alarm"), map[string]any{
		"AlarmName":    "agents-reaper-silent",
		"AlarmActions": []any{map[string]any{"Ref": assertions.Match_StringLikeRegexp(new("pager.*"))}},
	})
	template.HasResourceProperties(new("AWS::IAM::Policy"), map[string]any{
		"PolicyDocument": map[string]any{"Statement": assertions.Match_ArrayWith(&[]any{assertions.Match_ObjectLike(&map[string]any{
			"Action": "lambda:InvokeFunction",
		})})},
	})
	// A channel hears of what somebody should look at, with the command that helps.
	template.HasResourceProperties(new("AWS::Events::Rule"), map[string]any{
		"EventPattern": map[string]any{
			"source":      []any{"sandkeeper"},
			"detail-type": assertions.Match_ArrayWith(&[]any{"run.expiring"}),
		},
		"Targets": []any{assertions.Match_ObjectLike(&map[string]any{
			"Arn": map[string]any{"Ref": assertions.Match_StringLikeRegexp(new("channel.*"))},
			"InputTransformer": assertions.Match_ObjectLike(&map[string]any{
				"InputPathsMap": assertions.Match_ObjectLike(&map[string]any{"detail-command": "$.detail.command", "detail-run": "$.detail.run"}),
				"InputTemplate": assertions.Match_StringLikeRegexp(new(`"description":"<detail-reason> <detail-command>"`)),
			}),
		})},
	})
	// The operator's tool finds the stack by its outputs.
	for _, output := range []string{"RunsTable", "SandboxesTable", "ReapFunction", "Install"} {
		template.HasOutput(&output, map[string]any{})
	}
}
