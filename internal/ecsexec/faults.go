package ecsexec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// fault is a reason together with what is to be hoped for.
type fault struct {
	healing core.Healing
	reason  string
}

func retryable(reason string) fault     { return fault{core.Retry, reason} }
func configuration(reason string) fault { return fault{core.Configuration, reason} }

// apiFaults judges ExecuteCommand's errors by their code, as text: not all that the
// service answers is in the SDK's model. A code that is not here passes for a fault
// that heals, for the caller counts unknown answers anyway.
var apiFaults = map[string]fault{
	// The agent is not connected: for a few seconds after RUNNING it has not got
	// that far; for ever if the task role lacks the ssmmessages actions, the subnet a
	// route to the service, the container overrides the role's credentials, the root
	// file system is read-only, or the container was restarted. One answer does not
	// tell which: the caller stops after so many.
	"TargetNotConnectedException": retryable("target-not-connected"),
	"TargetNotFoundException":     retryable("target-not-found"),

	// Exec was not enabled when the task started, or its agent does not run; the same
	// code for a stopped task, an unknown container, a malformed id. Whether the
	// agent is only PENDING, or the task gone, DescribeTasks tells.
	"InvalidParameterException":   configuration("exec-not-enabled"),
	"ClusterNotFoundException":    configuration("cluster-not-found"),
	"ResourceNotFoundException":   configuration("resource-not-found"),
	"UnsupportedFeatureException": configuration("unsupported-feature"),
	"PlatformUnknownException":    configuration("unsupported-platform"),
	"ClientException":             configuration("request-refused"),
	"ValidationException":         configuration("request-refused"),
	"ValidationError":             configuration("request-refused"),
	"SerializationException":      configuration("request-refused"),
	"UnknownOperationException":   configuration("request-refused"),

	// The policy must name the cluster and the task; a condition key that does not
	// match answers the same.
	"AccessDeniedException":       configuration("access-denied"),
	"AccessDenied":                configuration("access-denied"),
	"UnauthorizedOperation":       configuration("access-denied"),
	"BlockedException":            configuration("account-blocked"),
	"OptInRequired":               configuration("account-blocked"),
	"UnrecognizedClientException": configuration("credentials-refused"),
	"InvalidClientTokenId":        configuration("credentials-refused"),
	"InvalidSignatureException":   configuration("credentials-refused"),
	"SignatureDoesNotMatch":       configuration("credentials-refused"),
	"IncompleteSignature":         configuration("credentials-refused"),
	"MissingAuthenticationToken":  configuration("credentials-refused"),
	"NotAuthorized":               configuration("credentials-refused"),
	"ExpiredTokenException":       retryable("credentials-expired"), // the next call fetches new ones
	"ExpiredToken":                retryable("credentials-expired"),
	"RequestExpired":              retryable("credentials-expired"),

	// RunTask, StopTask and ExecuteCommand share one bucket for each account and region.
	"ThrottlingException":       retryable("throttled"),
	"Throttling":                retryable("throttled"),
	"ThrottledException":        retryable("throttled"),
	"RequestLimitExceeded":      retryable("throttled"),
	"RequestThrottled":          retryable("throttled"),
	"RequestThrottledException": retryable("throttled"),
	"TooManyRequestsException":  retryable("throttled"),
	"SlowDown":                  retryable("throttled"),
	"LimitExceededException":    retryable("sessions-exhausted"),
	"ConflictException":         retryable("conflict"),
	"ResourceInUseException":    retryable("conflict"),

	"ServerException":             retryable("server-error"),
	"InternalFailure":             retryable("server-error"),
	"InternalError":               retryable("server-error"),
	"InternalServerError":         retryable("server-error"),
	"InternalServiceException":    retryable("server-error"),
	"ServiceUnavailable":          retryable("server-error"),
	"ServiceUnavailableException": retryable("server-error"),
}

// judgeAPI classifies an error of ExecuteCommand.
func judgeAPI(err error) fault {
	if errors.Is(err, core.ErrNoSpoke) {
		return configuration("no-spoke")
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		if f, known := apiFaults[api.ErrorCode()]; known {
			return f
		}
		return retryable("unknown-api-error")
	}
	return retryable("api-unreachable")
}

// judgeUpgrade classifies the HTTP status of a refused upgrade; 0 is no answer.
func judgeUpgrade(status int) fault {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return configuration("channel-denied") // ssmmessages:OpenDataChannel
	case status == 0:
		return retryable("channel-unreachable")
	}
	return retryable("channel-refused")
}

// closings judges the text that channel_closed brings, by a part of it; the first
// that is found counts. The texts are the agent's own.
var closings = []struct {
	part  string
	fault fault
}{
	{"Plugin with name", configuration("agent-broken")},                  // its files are gone, or /tmp was full
	{"start pty", configuration("no-shell")},                             // nothing to execute at /bin/sh
	{"start command", configuration("no-shell")},                         // the same, of newer agents
	{"no such file or directory", configuration("no-shell")},             // the same, the cause alone
	{"Fetching data key failed", configuration("kms-data-key")},          // the task role may not decrypt, or not this target
	{"KMSEncryption failed on client", configuration("kms-unsupported")}, // our own refusal, repeated
	{"couldn't start the session", configuration("logging-refused")},     // log group or bucket not encrypted, or not readable
	{"encryption is not set up", configuration("logging-refused")},       // the same
	{"unable to validate encryption", configuration("logging-refused")},  // the same, for a bucket
	{"access denied", configuration("agent-denied")},                     // the task role, at logging or keys
	{"AccessDenied", configuration("agent-denied")},                      // the same, as the service words it
	{"initiating handshake", retryable("handshake-failed")},              // it timed out
	{"Session timed out", retryable("session-timed-out")},                // the service's idle limit
	{"maximum number of sessions", retryable("sessions-exhausted")},      // the agent's slots
	{"Too many", retryable("sessions-exhausted")},                        // the same
}

// judgeClosing classifies a session that ended before its trailer.
func judgeClosing(text string) fault {
	if text == "" {
		// An ordinary end, seen from the agent: the last of the output was lost, or the
		// shell was killed.
		return retryable("closed-without-trailer")
	}
	for _, c := range closings {
		if strings.Contains(text, c.part) {
			return c.fault
		}
	}
	return retryable("closed-by-agent")
}

// words judges the shell's own outcomes.
var words = map[wordError]fault{
	"no-base64":  configuration("no-encoder"), // an image without base64
	"no-head":    configuration("no-head"),
	"no-sleep":   configuration("no-sleep"),
	"no-printf":  configuration("no-printf"),       // only needed for input: the shell has none of its own
	"no-stty":    configuration("no-stty"),         // only needed to type: echo must be off
	"unfinished": retryable("script-unfinished"),   // the watchdog rang
	"lost":       retryable("script-output-lost"),  // a part of the pipeline was killed
	"bad-script": configuration("base64-unusable"), // it does not decode
	"bad-input":  retryable("input-lost"),
}

// judgeReply classifies a complete trailer that brings no result.
func judgeReply(err error) fault {
	if word, ok := errors.AsType[wordError](err); ok {
		if f, known := words[word]; known {
			return f
		}
	}
	if errors.Is(err, errTooLarge) {
		return configuration("output-too-large")
	}
	return retryable("output-garbled")
}

// judgeHandshake classifies a handshake that we refused.
func judgeHandshake(err error) fault {
	if errors.Is(err, errKMS) {
		return configuration("kms-unsupported")
	}
	return configuration("handshake-unsupported")
}

// judgeContext tells the caller's own end from a deadline of ours.
func judgeContext(ctx context.Context, ours fault) fault {
	if errors.Is(ctx.Err(), context.Canceled) {
		return retryable("cancelled")
	}
	return ours
}

// failure is a fault on its way to an [core.ExecError].
type failure struct {
	fault fault
	cause error
}

// quoteLimit bounds what is quoted of a foreign text.
const quoteLimit = 400

// export makes the error that the caller sees. Its cause is kept only if none of
// the secrets, a session's id, token and address, is in its text.
func (f *failure) export(target core.ExecTarget, secrets ...string) *core.ExecError {
	out := &core.ExecError{Target: target, Healing: f.fault.healing, Reason: f.fault.reason, Cause: f.cause}
	if f.cause == nil {
		return out
	}
	text := f.cause.Error()
	clean := redact(text, secrets...)
	if clean != text {
		out.Cause = errors.New(clean)
	}
	return out
}

// redact replaces the secrets.
func redact(text string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	return text
}

// withoutURL strips the address that net/http puts in front of an error.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// agentText quotes what the agent said.
func agentText(text string) error {
	if text == "" {
		return nil
	}
	if len(text) > quoteLimit {
		text = text[:quoteLimit]
	}
	return fmt.Errorf("agent says %q", strings.ToValidUTF8(text, ""))
}
