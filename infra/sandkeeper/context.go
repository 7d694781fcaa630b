package sandkeeper

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// FromContext reads an app's context; what is not given has the default of [Props]. The
// CLI passes context as text, CDK_CONTEXT_JSON as JSON; either will do.
//
// Context: install (name of the installation), dist (directory with
// <function>/bootstrap), bundle (directory for zips beside a plain template), sandboxImage (image of the sample task definition), mode
// (observe or enforce), onCheckpointFailure (hold or release), checkpointConcurrency,
// toolsConcurrency, hostFunctions (names or ARNs, between commas),
// secretArns (ARNs, between commas), sandboxesPerTenant,
// keepCheckpoints, eventBus (name of the bus that hears what becomes of runs), tenants,
// vpc and subnets (ids of what is there), securityGroup, cluster (name of one that is
// there), taskFamilies, taskRoles (ARNs), taskTags (key=value), spokes (JSON: role, region, externalId, clusters of each), scheduleMinutes, runTTL,
// pauseTTL, idleTTL, retention, checkpointHold, breakerWindow, breakerMost, key (ARN),
// permissionsBoundary (ARN), logDays, logClass (standard or infrequent), tracing=true,
// removal (retain or destroy), tags (key=value), alarmTopic (ARN), idleBurnUSD, runbook (address), monitoring=false,
// local=true (the variant for an engine on loopback).
func FromContext(app awscdk.App) Props {
	c := reader{app}
	return Props{
		Install:               c.text("install"),
		Dist:                  c.text("dist"),
		Bundle:                c.text("bundle"),
		SandboxImage:          c.text("sandboxImage"),
		Mode:                  c.text("mode"),
		OnFailure:             c.text("onCheckpointFailure"),
		EventBus:              c.text("eventBus"),
		Tenants:               c.text("tenants"),
		CheckpointConcurrency: c.text("checkpointConcurrency"),
		ToolsConcurrency:      c.text("toolsConcurrency"),
		HostFunctions:         c.text("hostFunctions"),
		SecretARNs:            c.text("secretArns"),
		SandboxesPerTenant:    c.text("sandboxesPerTenant"),
		KeepCheckpoints:       c.text("keepCheckpoints"),
		VPC:                   c.text("vpc"),
		Subnets:               c.list("subnets"),
		SecurityGroup:         c.text("securityGroup"),
		Cluster:               c.text("cluster"),
		TaskFamilies:          c.list("taskFamilies"),
		TaskRoles:             c.list("taskRoles"),
		TaskTags:              c.pairs("taskTags"),
		Spokes:                c.spokes(),
		ScheduleMinutes:       c.whole("scheduleMinutes"),
		Limits:                c.limits(),
		Key:                   c.text("key"),
		PermissionsBoundary:   c.text("permissionsBoundary"),
		LogDays:               c.whole("logDays"),
		InfrequentLogs:        c.either("logClass", "standard", "infrequent"),
		Tracing:               c.yes("tracing", false),
		Destroy:               c.either("removal", "retain", "destroy"),
		Tags:                  c.pairs("tags"),
		NoMonitoring:          !c.yes("monitoring", true),
		AlarmTopic:            c.text("alarmTopic"),
		IdleBurnUSD:           c.number("idleBurnUSD"),
		Runbook:               c.text("runbook"),
		Local:                 c.yes("local", false),
	}.complete()
}

// reader reads an app's context. What is there and is not as expected panics.
type reader struct{ app awscdk.App }

// text renders whatever the context has, so that what is neither text nor number is
// refused where it is used rather than overlooked; empty if there is nothing.
func (c reader) text(key string) string {
	switch v := c.app.Node().TryGetContext(&key).(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

func (c reader) yes(key string, otherwise bool) bool {
	text := c.text(key)
	if text == "" {
		return otherwise
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		panic(fmt.Errorf("context %s: want true or false, got %q", key, text))
	}
	return yes
}

// number is a number from 0 on; 0 if there is nothing.
func (c reader) number(key string) float64 {
	text := c.text(key)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || n > 1e12 {
		panic(fmt.Errorf("context %s: want a number above 0, got %q", key, text))
	}
	return n
}

// whole is a whole number of at least 1; 0 if there is nothing.
func (c reader) whole(key string) int {
	text := c.text(key)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		panic(fmt.Errorf("context %s: want a whole number of at least 1, got %q", key, text))
	}
	return int(n)
}

// either reports whether the second of two words is there.
func (c reader) either(key, first, second string) bool {
	text := c.text(key)
	if text != "" && text != first && text != second {
		panic(fmt.Errorf("context %s: want %s or %s, got %q", key, first, second, text))
	}
	return text == second
}

// list is what stands between commas.
func (c reader) list(key string) []string {
	var out []string
	for part := range strings.SplitSeq(c.text(key), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// pairs are key=value between commas.
func (c reader) pairs(key string) map[string]string {
	out := map[string]string{}
	for _, part := range c.list(key) {
		name, value, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			panic(fmt.Errorf("context %s: want key=value between commas, got %q", key, part))
		}
		out[name] = value
	}
	return out
}

// json reads a context that is JSON, and reports whether there is one.
func (c reader) json(key string, into any) bool {
	v := c.app.Node().TryGetContext(&key)
	if v == nil || v == "" {
		return false
	}
	if err := core.DecodeStrict([]byte(jsonText(v)), into); err != nil {
		panic(fmt.Errorf("context %s: %w", key, err))
	}
	return true
}

// spokes are those that are there.
func (c reader) spokes() []core.Spoke {
	var out []core.Spoke
	c.json("spokes", &out)
	return out
}

// limits are those that are there.
func (c reader) limits() map[string]any {
	out := map[string]any{}
	for _, name := range []string{"runTTL", "pauseTTL", "idleTTL", "retention", "checkpointHold", "breakerWindow"} {
		if text := c.text(name); text != "" {
			out[name] = text
		}
	}
	if n := c.whole("breakerMost"); n != 0 {
		out["breakerMost"] = n
	}
	return out
}
