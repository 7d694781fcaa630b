package boot

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Call finds the one operation of known that an event {"<operation>": {…}} names, with its
// body. Any other event is a [*core.InvalidError], bad-request, that says what is wanted.
func Call[O any](event json.RawMessage, known map[string]O) (name string, operation O, body json.RawMessage, err error) {
	var none O
	listed := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	var members map[string]json.RawMessage
	if err := core.DecodeStrict(event, &members); err != nil {
		return "", none, nil, badRequest(`%v; want {"<operation>": {…}} with one of %s`, err, listed)
	}
	if len(members) != 1 {
		return "", none, nil, badRequest("want exactly one of %s, got %d members", listed, len(members))
	}
	for name, body = range members {
	}
	operation, ok := known[name]
	if !ok {
		return "", none, nil, badRequest("want one of %s, got %.80q", listed, name)
	}
	return name, operation, body, nil
}

func badRequest(format string, args ...any) error {
	return &core.InvalidError{Code: "bad-request", Detail: fmt.Sprintf(format, args...)}
}

// Bearer is the bearer of a request to a function's URL, and whether it has one.
func Bearer(r events.LambdaFunctionURLRequest) (string, bool) {
	scheme, bearer, _ := strings.Cut(r.Headers["authorization"], " ")
	if scheme != "Bearer" {
		return "", false
	}
	return bearer, bearer != ""
}

// Body is the body of a request to a function's URL, as it was sent. One that Lambda has
// not encoded as it says is a [*core.InvalidError], bad-request.
func Body(r events.LambdaFunctionURLRequest) ([]byte, error) {
	if !r.IsBase64Encoded {
		return []byte(r.Body), nil
	}
	body, err := base64.StdEncoding.DecodeString(r.Body)
	if err != nil {
		return nil, badRequest("body: want base64: %v", err)
	}
	return body, nil
}

// Respond is the answer to a request to a function's URL: JSON that nobody stores. What a
// page would have to escape stays as it is: the runtime escapes it once more, and a
// function's answer has a limit.
func Respond(status int, answer any) (events.LambdaFunctionURLResponse, error) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(answer); err != nil {
		return events.LambdaFunctionURLResponse{}, fmt.Errorf("write answer: %w", err)
	}
	return events.LambdaFunctionURLResponse{
		StatusCode: status, Body: strings.TrimSuffix(body.String(), "\n"),
		Headers: map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store"},
	}, nil
}
