package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"
)

// This file holds all that differs between the engines that somebody else may run.

// EndpointVariable names an engine that somebody else runs on this machine, for tests
// to deploy to in place of one of their own.
const EndpointVariable = "SANDKEEPER_ENGINE"

// healthPath is where LocalStack, and MiniStack after it, says what it offers.
const healthPath = "/_localstack/health"

// Kind is what an engine says that it is.
type Kind struct {
	Version  string
	Services []string // that it offers, sorted
}

// free says whether it is LocalStack's free core: it has no ECS, runs no function
// without a Docker engine and a registry, and its schedules never fire.
func (k Kind) free() bool { return !slices.Contains(k.Services, "ecs") }

// String names the kind for people.
func (k Kind) String() string {
	if k.free() {
		return "an engine without ECS, version " + k.Version + ": its stores, queues and buses alone"
	}
	return "an engine, version " + k.Version + ": the whole stack"
}

// Tests are the packages whose tests the engine can be held to.
func (k Kind) Tests() []string {
	if k.free() {
		return []string{"./internal/s3blob", "./internal/sqsout", "./internal/ebout", "./internal/ddb"}
	}
	return []string{"./internal/e2e"}
}

// Kind asks the engine what it is; where nothing answers, or something that does not say
// what it offers, the error says so.
func (e *Engine) Kind(ctx context.Context) (Kind, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Endpoint+healthPath, nil)
	if err != nil {
		return Kind{}, fmt.Errorf("ask engine at %s: %w", e.Endpoint, err)
	}
	response, err := (&http.Client{Transport: e.transport()}).Do(request)
	if err != nil {
		return Kind{}, fmt.Errorf("ask engine at %s: %w", e.Endpoint, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Kind{}, fmt.Errorf("ask engine at %s: want LocalStack or MiniStack there, got %s for %s", e.Endpoint, response.Status, healthPath)
	}
	var said struct {
		Version  string
		Services map[string]string
	}
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil || len(said.Services) == 0 {
		return Kind{}, fmt.Errorf("ask engine at %s: want LocalStack or MiniStack there, got an answer without services: %w", e.Endpoint, cmp.Or(err, errors.New("none is listed")))
	}
	k := Kind{Version: said.Version}
	for service, state := range said.Services {
		if state != "disabled" {
			k.Services = append(k.Services, service)
		}
	}
	slices.Sort(k.Services)
	return k, nil
}

// Foreign attaches to the engine of [EndpointVariable], with a directory of its own for
// the tools; nil if the variable is not set.
func Foreign() (*Engine, error) {
	endpoint := os.Getenv(EndpointVariable)
	if endpoint == "" {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "sandkeeper-engine-")
	if err != nil {
		return nil, fmt.Errorf("make engine directory: %w", err)
	}
	return Attach(endpoint, Options{Dir: dir})
}
