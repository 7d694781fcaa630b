package awssecrets_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/sandkeeper/sandkeeper/internal/awssecrets"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	secret    = "arn:aws:secretsmanager:us-east-1:000000000000:secret:git-AbCdEf"
	binary    = "arn:aws:secretsmanager:us-east-1:000000000000:secret:key-AbCdEf"
	parameter = "arn:aws:ssm:us-east-1:000000000000:parameter/app/token"
)

// serve plays both services.
func serve(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			SecretID       string `json:"SecretId"`
			Name           string
			WithDecryption bool
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		switch target := r.Header.Get("X-Amz-Target"); {
		case target == "secretsmanager.GetSecretValue" && q.SecretID == secret:
			_, _ = w.Write([]byte(`{"SecretString": "text"}`))
		case target == "secretsmanager.GetSecretValue" && q.SecretID == binary:
			_, _ = w.Write([]byte(`{"SecretBinary": "Ynl0ZXM="}`))
		case target == "AmazonSSM.GetParameter" && q.Name == parameter && q.WithDecryption:
			_, _ = w.Write([]byte(`{"Parameter": {"Value": "a parameter"}}`))
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"__type": "ResourceNotFoundException", "message": "none"}`))
		}
	}
}

func TestResolveReadsEachKind(t *testing.T) {
	server := httptest.NewServer(serve(t))
	defer server.Close()
	login := credentials.NewStaticCredentialsProvider("test", "test", "")
	values := &awssecrets.Values{
		Secrets:    secretsmanager.New(secretsmanager.Options{BaseEndpoint: &server.URL, Region: "us-east-1", Credentials: login}),
		Parameters: ssm.New(ssm.Options{BaseEndpoint: &server.URL, Region: "us-east-1", Credentials: login}),
	}
	for ref, want := range map[string]string{secret: "text", binary: "bytes", parameter: "a parameter"} {
		if got, err := values.Resolve(t.Context(), ref); err != nil || got != want {
			t.Errorf("%s: %q, %v", ref, got, err)
		}
	}
	if _, err := values.Resolve(t.Context(), secret+"x"); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("a secret that is not there: %v", err)
	}
	for ref, says := range map[string]string{secret + "x": "none", parameter + "x": "none", "arn:aws:s3:::x:y": `"s3"`, "plain": "want the ARN"} {
		if got, err := values.Resolve(t.Context(), ref); err == nil || got != "" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, %v, want an error that says %q", ref, got, err, says)
		}
	}
}
