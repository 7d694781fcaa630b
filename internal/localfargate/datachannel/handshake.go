package datachannel

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

const (
	handshakeLimit  = 15 * time.Second // for a client's answer
	handshakePrefix = "Encountered error while initiating handshake. "
	agentVersion    = "3.3.1611.0"
	actionSuccess   = 1
)

// refusal is why a session ends before its command runs, or "".
func (w *worker) refusal(ctx context.Context) string {
	f := w.session.faults()
	if f.CloseText != "" || !f.KMS {
		return f.CloseText
	}
	if err := w.handshake(ctx); err != nil {
		return handshakePrefix + err.Error()
	}
	return ""
}

// handshakeResponse is what a client answers.
type handshakeResponse struct {
	ProcessedClientActions []struct {
		ActionType   string
		ActionStatus int
		Error        string
	}
}

// handshake asks the client for an encrypted session. Since nothing here can decrypt
// a data key, a client that brings one fails as with a key that belongs to another target.
func (w *worker) handshake(ctx context.Context) error {
	answers := make(chan []byte, 1)
	w.mu.Lock()
	w.answers = answers
	w.mu.Unlock()
	request, err := json.Marshal(map[string]any{
		"AgentVersion": agentVersion,
		"RequestedClientActions": []map[string]any{
			{"ActionType": "KMSEncryption", "ActionParameters": map[string]string{"KMSKeyId": "arn:aws:kms:local", "Challenge": randomToken()}},
			{"ActionType": "SessionType", "ActionParameters": map[string]any{"SessionType": "InteractiveCommands"}},
		},
	})
	if err != nil {
		return err
	}
	w.say(payloadHandshakeRequest, request)
	select {
	case body := <-answers:
		return judgeHandshake(body)
	case <-time.After(handshakeLimit):
		return fmt.Errorf("Handshake timed out. Please ensure that you have the latest version of the session manager plugin.") //nolint:staticcheck // the agent's own words
	case <-ctx.Done():
		return ctx.Err()
	}
}

func judgeHandshake(body []byte) error {
	var r handshakeResponse
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("read handshake response: %w", err)
	}
	for _, action := range r.ProcessedClientActions {
		if action.ActionStatus != actionSuccess {
			return fmt.Errorf("%s failed on client with status %d error: %s", action.ActionType, action.ActionStatus, action.Error)
		}
	}
	return fmt.Errorf("Fetching data key failed: Unable to retrieve data key, Error when decrypting data key InvalidCiphertextException: ") //nolint:staticcheck // the agent's own words
}

// shake takes what comes while a handshake is open: all but the response is thrown
// away. Call with the lock held.
func (w *worker) shake(f frame) {
	if f.payloadType != payloadHandshakeResponse {
		return
	}
	select {
	case w.answers <- f.payload:
	default:
	}
}
