package sandkeeper

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-cdk-go/awscdk/v2"
)

// FromContext reads an app's context; what is not given has the default of [Props]. The
// CLI passes context as text, CDK_CONTEXT_JSON as JSON; either will do.
//
// Context: install (name of the installation), dist (directory with
// <function>/bootstrap), sandboxImage (image of the sample task definition), mode
// (observe or enforce), onCheckpointFailure (hold or release), checkpointConcurrency,
// toolsConcurrency, hostFunctions (names or ARNs, between commas),
// keepCheckpoints, eventBus (name of the bus that hears what becomes of runs), tenants,
// scheduleMinutes, alarmTopic (ARN), idleBurnUSD, runbook (address), monitoring=false,
// local=true (the variant for an engine on loopback).
func FromContext(app awscdk.App) Props {
	c := reader{app}
	return Props{
		Install:               c.text("install"),
		Dist:                  c.text("dist"),
		SandboxImage:          c.text("sandboxImage"),
		Mode:                  c.text("mode"),
		OnFailure:             c.text("onCheckpointFailure"),
		EventBus:              c.text("eventBus"),
		Tenants:               c.text("tenants"),
		CheckpointConcurrency: c.text("checkpointConcurrency"),
		ToolsConcurrency:      c.text("toolsConcurrency"),
		HostFunctions:         c.text("hostFunctions"),
		KeepCheckpoints:       c.text("keepCheckpoints"),
		ScheduleMinutes:       c.whole("scheduleMinutes"),
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
