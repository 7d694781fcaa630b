package transfer_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

const token = "dGVuYW50.dGhyZWFk.7.c2VjcmV0"

func TestACallIsAPostWithTheToken(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodPost || r.URL.Path != transfer.PathRenew || r.Host != "id.lambda-url.example.test" ||
			r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("Content-Type") != "application/json" || string(body) != `{"a":1}` {
			t.Errorf("%s %s of %s: %v %q", r.Method, r.URL, r.Host, r.Header, body)
		}
		_, _ = io.WriteString(w, `{"until":5}`)
	}))
	defer server.Close()
	h, err := transfer.NewHTTP(server.URL+"/", "id.lambda-url.example.test", token)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := h.Call(t.Context(), transfer.PathRenew, []byte(`{"a":1}`)); err != nil || string(answer) != `{"until":5}` {
		t.Errorf("answered %q, %v", answer, err)
	}
}

func TestWhatIsNoSuccess(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		want   transfer.Error
	}{
		{"a refusal", 409, `{"error":{"code":"stale-head","message":"want the head"}}`, transfer.Error{Code: "stale-head", Message: "want the head", Status: 409}},
		{"of another kind", 403, `{"Message":"Forbidden"}`, transfer.Error{Code: "http-403", Message: `"{\"Message\":\"Forbidden\"}"`, Status: 403}},
		{"a redirect", 302, ``, transfer.Error{Code: "http-302", Message: `""`, Status: 302}},
		{"a crowd", 429, `{"Reason":"ReservedFunctionConcurrentInvocationLimitExceeded"}`, transfer.Error{Code: transfer.CodeUnavailable, Status: 429}},
		{"a crash", 502, `Internal Server Error`, transfer.Error{Code: transfer.CodeUnavailable, Status: 502}},
		{"a fault", 503, `{"error":{"code":"throttled","message":"m"}}`, transfer.Error{Code: transfer.CodeUnavailable, Message: "m", Status: 503}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			defer server.Close()
			h, err := transfer.NewHTTP(server.URL, "", token)
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Call(t.Context(), transfer.PathGrant, nil)
			e, ok := errors.AsType[*transfer.Error](err)
			if !ok || e.Code != tt.want.Code || e.Status != tt.want.Status || tt.want.Message != "" && e.Message != tt.want.Message {
				t.Errorf("error %+v, want %+v", err, tt.want)
			}
		})
	}
}

func TestNoAnswerMayPass(t *testing.T) {
	h, err := transfer.NewHTTP("http://127.0.0.1:1", "", token)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Call(t.Context(), transfer.PathGrant, nil)
	if e, ok := errors.AsType[*transfer.Error](err); !ok || e.Code != transfer.CodeUnavailable || strings.Contains(e.Message, "c2VjcmV0") {
		t.Errorf("error %v", err)
	}
}

func TestSizesAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, transfer.MaxBody+1))
	}))
	defer server.Close()
	h, err := transfer.NewHTTP(server.URL, "", token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Call(t.Context(), transfer.PathParent, nil); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("a long answer: %v", err)
	}
	_, err = h.Call(t.Context(), transfer.PathCommit, make([]byte, transfer.MaxBody+1))
	if e, ok := errors.AsType[*transfer.Error](err); !ok || e.Code != "too-large" {
		t.Errorf("a long request: %v", err)
	}
}

func TestAPlaceThatIsNoneIsRefused(t *testing.T) {
	for _, tt := range []struct{ url, token string }{
		{"", token}, {"file:///etc/passwd", token}, {"https://", token}, {"https://h/path", token},
		{"https://h?q=1", token}, {"://", token}, {"https://h", ""}, {"https://h", "two words"}, {"https://h", "line\n"},
	} {
		if _, err := transfer.NewHTTP(tt.url, "", tt.token); err == nil || tt.token != "" && strings.Contains(err.Error(), tt.token) {
			t.Errorf("%q with token %q: %v", tt.url, tt.token, err)
		}
	}
}
