package localfargate

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	targetPrefix = "AmazonEC2ContainerServiceV20141113."
	contentType  = "application/x-amz-json-1.1"
	bodyLimit    = 1 << 20
)

// operation is one call of the API and the buckets that each call draws on.
type operation struct {
	buckets []string
	call    func(s *Server, ctx context.Context, body []byte) (any, error)
}

// does decodes the body for a handler.
func does[I any](f func(*Server, context.Context, I) (any, error), buckets ...string) operation {
	return operation{buckets: buckets, call: func(s *Server, ctx context.Context, body []byte) (any, error) {
		var in I
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, clientError("SerializationException", "%s", err)
		}
		return f(s, ctx, in)
	}}
}

var operations = map[string]operation{
	"RunTask":                does((*Server).runTask, bucketResourceModify, bucketRunTaskCalls),
	"StopTask":               does((*Server).stopTask, bucketResourceModify),
	"ExecuteCommand":         does((*Server).executeCommand, bucketResourceModify),
	"DescribeTasks":          does((*Server).describeTasks, bucketResourceRead),
	"ListTasks":              does((*Server).listTasks, bucketResourceRead),
	"DescribeClusters":       does((*Server).describeClusters, bucketClusterRead),
	"CreateCluster":          does((*Server).createCluster),
	"RegisterTaskDefinition": does((*Server).registerTaskDefinition, bucketRegister),
	"DescribeTaskDefinition": does((*Server).describeTaskDefinition, bucketDefinitionRead),
	"TagResource":            does((*Server).tagResource),
	"UntagResource":          does((*Server).untagResource),
	"ListTagsForResource":    does((*Server).listTagsForResource),
}

// serveAPI answers awsJson 1.1, the only protocol that the SDKs speak to ECS.
func (s *Server) serveAPI(rw http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
	at, err := s.server(r)
	if err == nil && at != s {
		at.serveAPI(rw, r)
		return
	}
	var out any
	if err == nil {
		out, err = s.answer(r, name)
	}
	var failed *apiError
	if err != nil {
		var ok bool
		if failed, ok = errors.AsType[*apiError](err); !ok {
			s.log.Error("answer call", "operation", name, "err", err)
			failed = &apiError{code: "ServerException", message: "Internal error", status: http.StatusInternalServerError}
		}
	}
	s.calls.count(name, failed)
	rw.Header().Set("Content-Type", contentType)
	rw.Header().Set("x-amzn-RequestId", newUUID())
	if failed != nil {
		writeError(rw, failed)
		return
	}
	_ = json.NewEncoder(rw).Encode(out)
}

// atBridge marks the context of a call that came over the bridge.
type atBridge struct{}

func (s *Server) heardAt(r *http.Request) context.Context {
	if s.bridge != "" && r.Host == s.bridge {
		return context.WithValue(r.Context(), atBridge{}, true)
	}
	return r.Context()
}

// gatewayURL is the message gateway's, where the caller reaches it.
func (s *Server) gatewayURL(ctx context.Context) string {
	if ctx.Value(atBridge{}) != nil {
		return "wss://" + s.bridge
	}
	return "ws" + strings.TrimPrefix(s.url, "http")
}

func writeError(rw http.ResponseWriter, e *apiError) {
	body := map[string]any{"__type": e.code, "message": e.message}
	if e.resourceIDs != nil {
		body["resourceIds"] = e.resourceIDs
	}
	rw.WriteHeader(e.status)
	_ = json.NewEncoder(rw).Encode(body)
}

func (s *Server) answer(r *http.Request, name string) (any, error) {
	op, ok := operations[name]
	if !ok || !strings.HasPrefix(r.Header.Get("X-Amz-Target"), targetPrefix) {
		return nil, clientError("UnknownOperationException", "%s", name)
	}
	if auth := r.Header.Get("Authorization"); !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 ") || !strings.Contains(auth, "/ecs/aws4_request") {
		return nil, clientError("MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, bodyLimit))
	if err != nil {
		return nil, clientError("SerializationException", "%s", err)
	}
	for _, bucket := range op.buckets {
		if !s.throttle.take(bucket, 1, time.Now()) {
			return nil, errThrottled
		}
	}
	return op.call(s, s.heardAt(r), body)
}
