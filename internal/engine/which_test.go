package engine_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
)

func TestAnEngineIsHeldToWhatItOffers(t *testing.T) {
	for name, test := range map[string]struct {
		health string
		want   []string
	}{
		"with ECS, the whole stack":  {`{"version":"1","services":{"ecs":"available","s3":"running"}}`, []string{"./internal/e2e"}},
		"without, what it stores":    {`{"version":"4.14.0","services":{"s3":"available"}}`, []string{"./internal/s3blob", "./internal/sqsout", "./internal/ebout", "./internal/ddb"}},
		"one that is disabled is no": {`{"version":"4.14.0","services":{"ecs":"disabled"}}`, []string{"./internal/s3blob", "./internal/sqsout", "./internal/ebout", "./internal/ddb"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/_localstack/health" {
					t.Errorf("asked %s", r.URL)
				}
				_, _ = rw.Write([]byte(test.health))
			}))
			defer server.Close()
			e, err := engine.Attach(server.URL, engine.Options{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			kind, err := e.Kind(t.Context())
			if err != nil || !slices.Equal(kind.Tests(), test.want) {
				t.Errorf("tests %v, %v, want %v", kind.Tests(), err, test.want)
			}
		})
	}
}

func TestOurOwnEngineRunsTheWholeStack(t *testing.T) {
	kind, err := enginetest.Own(t, engine.Options{}).Kind(t.Context())
	if err != nil || !slices.Equal(kind.Tests(), []string{"./internal/e2e"}) {
		t.Errorf("%s, %v", kind, err)
	}
}
