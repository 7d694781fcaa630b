package mcptools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// methods are the requests that the server knows: one of them that is refused is so for
// its parameters.
var methods = map[string]bool{"initialize": true, "ping": true, "tools/list": true, "tools/call": true}

// message is what every message of JSON-RPC has.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// inProtocol answers in the protocol what the SDK refuses with a status and a text: an
// agent's library then tells the request that failed, and keeps the connection.
func inProtocol(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, toolwire.MaxBody))
		if _, long := errors.AsType[*http.MaxBytesError](err); long {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("want a message of at most %d bytes", toolwire.MaxBody))
			return
		}
		if err != nil {
			return // nobody is left to be answered
		}
		m, code := readMessage(body)
		if code != 0 {
			answerError(w, m.ID, code)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		held := &holding{ResponseWriter: w}
		next.ServeHTTP(held, r)
		if !held.refused {
			return
		}
		code = jsonrpc.CodeInvalidParams
		if !methods[m.Method] {
			code = jsonrpc.CodeMethodNotFound
		}
		answerError(w, m.ID, int64(code))
	})
}

// readMessage reads what a body is; a code says that it is none. Several messages at once
// are for the SDK to read.
func readMessage(body []byte) (message, int64) {
	var m message
	switch {
	case !json.Valid(body):
		return m, jsonrpc.CodeParseError
	case bytes.TrimSpace(body)[0] == '[':
		return m, 0
	case json.Unmarshal(body, &m) != nil:
		var id struct {
			ID json.RawMessage `json:"id"`
		}
		if json.Unmarshal(body, &id) == nil && id.ID != nil { // a method that is no text is none
			return message{ID: id.ID}, jsonrpc.CodeMethodNotFound
		}
		return m, jsonrpc.CodeInvalidRequest
	case string(bytes.TrimSpace(body)) == "null":
		return m, jsonrpc.CodeInvalidRequest
	}
	return m, 0
}

var codeTexts = map[int64]string{
	jsonrpc.CodeParseError: "Parse error", jsonrpc.CodeInvalidRequest: "Invalid Request",
	jsonrpc.CodeMethodNotFound: "Method not found", jsonrpc.CodeInvalidParams: "Invalid params",
}

// answerError answers a request. What has no id is none, or several, or a notification:
// then the status says it too.
func answerError(w http.ResponseWriter, id json.RawMessage, code int64) {
	status := http.StatusOK
	if id == nil {
		id, status = json.RawMessage("null"), http.StatusBadRequest
	}
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": codeTexts[code]},
	})
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// holding passes on every answer but a refusal with the status of bad requests.
type holding struct {
	http.ResponseWriter
	refused bool
}

// WriteHeader holds a refusal back, headers too.
func (h *holding) WriteHeader(status int) {
	if status == http.StatusBadRequest {
		h.refused = true
		clear(h.Header())
		return
	}
	h.ResponseWriter.WriteHeader(status)
}

// Write drops the text of a refusal.
func (h *holding) Write(data []byte) (int, error) {
	if h.refused {
		return len(data), nil
	}
	return h.ResponseWriter.Write(data)
}

// Unwrap is for [http.ResponseController].
func (h *holding) Unwrap() http.ResponseWriter { return h.ResponseWriter }
