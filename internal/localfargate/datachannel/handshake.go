package datachannel

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// The agent's own words.
const (
	agentVersion     = "3.3.1611.0"
	handshakeFailed  = "Encountered error while initiating handshake. "
	handshakeTimeout = handshakeFailed + "Handshake timed out. Please ensure that you have the latest version of the session manager plugin."
	dataKeyFailed    = handshakeFailed + "Fetching data key failed: Unable to retrieve data key, Error when decrypting data key InvalidCiphertextException: "
)

const (
	handshakeLimit = 15 * time.Second // for a client's answer
	actionSuccess  = 1
)

// refusal is why a session ends before its command runs, or "".
func (w *worker) refusal(ctx context.Context) string {
	switch f := w.session.faults(); {
	case f.CloseText != "":
		return f.CloseText
	case f.KMS:
		return w.handshake(ctx)
	}
	return ""
}

// handshake asks the client for an encrypted session and says how that failed:
// nothing here can decrypt a data key, so a client that brings one meets the same
// as with a key made for another target.
func (w *worker) handshake(ctx context.Context) string {
	answers := make(chan []byte, 1)
	w.mu.Lock()
	w.answers = answers
	w.mu.Unlock()
	request, _ := json.Marshal(map[string]any{
		"AgentVersion": agentVersion,
		"RequestedClientActions": []map[string]any{
			{"ActionType": "KMSEncryption", "ActionParameters": map[string]string{"KMSKeyId": "alias/sandbox", "Challenge": randomToken()}},
			{"ActionType": "SessionType", "ActionParameters": map[string]any{"SessionType": "InteractiveCommands"}},
		},
	})
	w.say(payloadHandshakeRequest, request)
	select {
	case body := <-answers:
		return handshakeVerdict(body)
	case <-time.After(handshakeLimit):
		return handshakeTimeout
	case <-ctx.Done():
		return ""
	}
}

// handshakeVerdict reads a client's response as the agent does: the first action
// that did not succeed is named.
func handshakeVerdict(body []byte) string {
	var r struct {
		ProcessedClientActions []struct {
			ActionType   string
			ActionStatus int
			Error        string
		}
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return handshakeFailed + err.Error()
	}
	for _, action := range r.ProcessedClientActions {
		if action.ActionStatus != actionSuccess {
			return fmt.Sprintf("%s%s failed on client with status %d error: %s",
				handshakeFailed, action.ActionType, action.ActionStatus, action.Error)
		}
	}
	return dataKeyFailed
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
