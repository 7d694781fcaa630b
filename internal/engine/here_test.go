package engine_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/engine"
)

// elsewhere is an address of documentation, which no machine has.
const elsewhere = "http://192.0.2.1:9/"

// TestNoRedirectLeavesThisMachine: an engine that answers with another address is not
// followed there, whatever is asked.
func TestNoRedirectLeavesThisMachine(t *testing.T) {
	server := httptest.NewServer(http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect))
	defer server.Close()
	e, err := engine.Attach(server.URL, engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Kind(t.Context()); !errors.Is(err, engine.ErrElsewhere) {
		t.Errorf("kind: %v", err)
	}
	if _, err := dynamodb.NewFromConfig(e.Config()).ListTables(t.Context(), nil); err == nil {
		t.Error("tables were listed elsewhere")
	}
}

func TestATransportConnectsToThisMachineAlone(t *testing.T) {
	t.Setenv("HTTP_PROXY", elsewhere)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	engine.HereAlone(transport)
	client := &http.Client{Transport: transport}
	for url, here := range map[string]bool{
		server.URL: true, strings.Replace(server.URL, "127.0.0.1", "localhost", 1): true, strings.Replace(server.URL, "127.0.0.1", "[::ffff:127.0.0.1]", 1): true,
		elsewhere: false, "http://[2001:db8::1]:9/": false, "http://0.0.0.0:9/": false,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if errors.Is(err, engine.ErrElsewhere) == here || (err == nil) != here {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestWhatIsNoEngineIsRefused, and not taken for one that offers nothing.
func TestWhatIsNoEngineIsRefused(t *testing.T) {
	for name, handler := range map[string]http.Handler{
		"a page":               http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) }),
		"JSON of another kind": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status":"green"}`)) }),
		"nothing there":        http.NotFoundHandler(),
	} {
		server := httptest.NewServer(handler)
		e, err := engine.Attach(server.URL, engine.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if kind, err := e.Kind(t.Context()); err == nil || !strings.Contains(err.Error(), "want LocalStack or MiniStack there, got ") {
			t.Errorf("%s: %s, %v", name, kind, err)
		}
		server.Close()
	}
}
