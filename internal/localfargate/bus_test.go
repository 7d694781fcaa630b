package localfargate_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
)

type busEntry struct {
	Source, DetailType, Detail string
	Resources                  []string
}

// bus is an EventBridge that fails its first calls and keeps the rest.
type bus struct {
	url    string
	client *eventbridge.Client

	mu      sync.Mutex
	failing int
	entries []busEntry
}

func newBus(t *testing.T, failing int) *bus {
	b := &bus{failing: failing}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var in struct{ Entries []busEntry }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("X-Amz-Target") != "AWSEvents.PutEvents" {
			t.Errorf("request %s: %v", r.Header.Get("X-Amz-Target"), err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		rw.Header().Set("Content-Type", "application/x-amz-json-1.1")
		if b.failing > 0 {
			b.failing--
			_, _ = rw.Write([]byte(`{"FailedEntryCount":1,"Entries":[{"ErrorCode":"InternalFailure"}]}`))
			return
		}
		b.entries = append(b.entries, in.Entries...)
		_, _ = rw.Write([]byte(`{"FailedEntryCount":0,"Entries":[{"EventId":"1"}]}`))
	}))
	t.Cleanup(server.Close)
	b.url = server.URL
	b.client = eventbridge.New(eventbridge.Options{
		BaseEndpoint: &b.url, Region: "us-east-1", Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
	return b
}

func (b *bus) received() []busEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries
}
