package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// An agent calls its tools inside the sandbox, so that the host sees them in the run's
// output only. What is merged into the saved conversation shows them when somebody comes
// back; it is marked "observed": true, for the model was never given those tools and must
// not be sent them.
//
// The output is read as the agents' command lines write it in their streaming JSON: one
// object a line, of which a message (the object itself, or its member "message") has
// "role" and "content", and its content blocks of type "tool_use" (id, name, input) and
// "tool_result" (tool_use_id, content, is_error). Everything else is passed over.

// The bounds of what one merge adds, in bytes of JSON: a conversation is saved by one
// call.
const (
	observedResult = 32 << 10
	observedAll    = 1 << 20
)

// block is a part of a message's content.
type block struct {
	Type      string          `json:"type"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
	Truncated bool            `json:"truncated,omitempty"` // the content was too long to be kept
	Observed  bool            `json:"observed,omitempty"`
}

// message is as much of a message as its tool calls show: in blocks, or in the members
// that chat APIs have beside the text.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Calls   []struct {
		ID string `json:"id"`
	} `json:"tool_calls"`
	CallsToo []struct {
		ID string `json:"id"`
	} `json:"toolCalls"`
	ResultOf    string `json:"tool_call_id"`
	ResultOfToo string `json:"toolCallId"`
}

// blocks are the content of a message, where it has any.
func (m message) blocks() []block {
	var all []json.RawMessage
	if json.Unmarshal(m.Content, &all) != nil {
		return nil // a text
	}
	out := make([]block, len(all))
	for i, one := range all {
		if json.Unmarshal(one, &out[i]) != nil {
			out[i] = block{} // of a shape that is not ours
		}
	}
	return out
}

// Observed collects the tool calls of a run's output, line by line. Its zero value has
// seen none. A line that comes again, as after an attach from an earlier position,
// changes nothing.
type Observed struct {
	calls   []block
	results map[string]block // by the call's id
}

// Line reads one line of output.
func (o *Observed) Line(text []byte) {
	if !bytes.Contains(text, []byte(`"tool_use"`)) && !bytes.Contains(text, []byte(`"tool_result"`)) {
		return
	}
	var line struct {
		message
		Message *message `json:"message"`
	}
	if json.Unmarshal(text, &line) != nil {
		return
	}
	said := line.message
	if line.Message != nil {
		said = *line.Message
	}
	for _, b := range said.blocks() {
		o.note(said.Role, b)
	}
}

func (o *Observed) note(role string, b block) {
	switch {
	case role == "assistant" && b.Type == "tool_use" && b.ID != "" && b.Name != "":
		known := func(c block) bool { return c.ID == b.ID }
		if !slices.ContainsFunc(o.calls, known) {
			o.calls = append(o.calls, block{Type: b.Type, ID: b.ID, Name: b.Name, Input: b.Input, Observed: true})
		}
	case role == "user" && b.Type == "tool_result" && b.ToolUseID != "":
		if o.results == nil {
			o.results = map[string]block{}
		}
		if _, known := o.results[b.ToolUseID]; !known {
			o.results[b.ToolUseID] = bounded(b)
		}
	}
}

// bounded is a result of which no more is kept than a conversation can bear.
func bounded(b block) block {
	r := block{Type: b.Type, ToolUseID: b.ToolUseID, Content: b.Content, IsError: b.IsError, Observed: true}
	if len(r.Content) > observedResult {
		r.Content, r.Truncated = nil, true
	}
	return r
}

// Merge adds the calls to a conversation, a JSON array of messages, each as a message of
// the assistant and, where there is one, its result as a message of the user behind it.
// They stand behind the last prompt, before the answer that they led to. A call that the
// conversation has already, from whomever, is not added again; nothing that is there is
// changed. An empty conversation is an array without messages.
func (o *Observed) Merge(conversation []byte) ([]byte, error) {
	messages, err := readMessages(conversation)
	if err != nil {
		return nil, fmt.Errorf("merge observed calls: %w", err)
	}
	calls, results := mentioned(messages)
	var added []json.RawMessage
	room := observedAll
	for _, call := range o.calls {
		if calls[call.ID] {
			continue
		}
		room -= len(call.Input)
		if room < 0 {
			call.Input, call.Truncated = json.RawMessage(`{}`), true
		}
		added = append(added, observedMessage("assistant", call))
		result, ok := o.results[call.ID]
		if !ok || results[call.ID] {
			continue
		}
		room -= len(result.Content)
		if room < 0 {
			result.Content, result.Truncated = nil, true
		}
		added = append(added, observedMessage("user", result))
	}
	if len(added) == 0 {
		return conversation, nil
	}
	return writeMessages(slices.Insert(messages, turnOf(messages), added...))
}

func observedMessage(role string, b block) json.RawMessage {
	if b.Type == "tool_use" && b.Input == nil {
		b.Input = json.RawMessage(`{}`)
	}
	text, err := writeJSON(struct {
		Role    string  `json:"role"`
		Content []block `json:"content"`
	}{role, []block{b}})
	if err != nil {
		panic(err) // of what was read as JSON
	}
	return text
}

// mentioned are the ids of the calls and results that a conversation has.
func mentioned(messages []json.RawMessage) (calls, results map[string]bool) {
	calls, results = map[string]bool{}, map[string]bool{}
	for _, text := range messages {
		var m message
		if json.Unmarshal(text, &m) != nil {
			continue
		}
		for _, c := range slices.Concat(m.Calls, m.CallsToo) {
			calls[c.ID] = true
		}
		results[m.ResultOf], results[m.ResultOfToo] = true, true
		for _, b := range m.blocks() {
			calls[b.ID] = calls[b.ID] || b.Type == "tool_use"
			results[b.ToolUseID] = true
		}
	}
	return calls, results
}

// turnOf is the place behind the last prompt, and behind what has been observed since.
func turnOf(messages []json.RawMessage) int {
	at := 0
	for i, text := range messages {
		var m message
		if json.Unmarshal(text, &m) != nil {
			continue
		}
		blocks := m.blocks()
		result := func(b block) bool { return b.Type == "tool_result" }
		if m.Role == "user" && !slices.ContainsFunc(blocks, result) {
			at = i + 1
		}
		if at == i && slices.ContainsFunc(blocks, func(b block) bool { return b.Observed }) {
			at = i + 1
		}
	}
	return at
}

// MergeObserved merges the tool calls of a run's output into a conversation, as
// [Observed.Merge] does.
func MergeObserved(conversation, output []byte) ([]byte, error) {
	var o Observed
	for line := range bytes.Lines(output) {
		o.Line(line)
	}
	return o.Merge(conversation)
}

// StripObserved takes what was merged out of a conversation again: what goes to the model
// is the result. A message of which nothing is left is left out; of every other, what was
// not observed stays.
func StripObserved(conversation []byte) ([]byte, error) {
	messages, err := readMessages(conversation)
	if err != nil {
		return nil, fmt.Errorf("strip observed calls: %w", err)
	}
	kept := make([]json.RawMessage, 0, len(messages))
	for _, text := range messages {
		stripped, empty, err := strip(text)
		if err != nil {
			return nil, fmt.Errorf("strip observed calls: %w", err)
		}
		if !empty {
			kept = append(kept, stripped)
		}
	}
	return writeMessages(kept)
}

// strip takes the observed blocks out of a message; empty: there were no others.
func strip(text json.RawMessage) (_ json.RawMessage, empty bool, err error) {
	var m message
	if json.Unmarshal(text, &m) != nil {
		return text, false, nil
	}
	blocks := m.blocks()
	if !slices.ContainsFunc(blocks, func(b block) bool { return b.Observed }) {
		return text, false, nil
	}
	var members map[string]json.RawMessage
	var all, kept []json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, false, err
	}
	if err := json.Unmarshal(m.Content, &all); err != nil {
		return nil, false, err
	}
	for i, b := range blocks {
		if !b.Observed {
			kept = append(kept, all[i])
		}
	}
	if len(kept) == 0 {
		return nil, true, nil
	}
	if members["content"], err = writeMessages(kept); err != nil {
		return nil, false, err
	}
	stripped, err := writeJSON(members)
	return stripped, false, err
}

func readMessages(conversation []byte) ([]json.RawMessage, error) {
	if len(conversation) == 0 {
		return nil, nil
	}
	var messages []json.RawMessage
	if err := json.Unmarshal(conversation, &messages); err != nil {
		return nil, fmt.Errorf("want a JSON array of messages: %w", err)
	}
	return messages, nil
}

func writeMessages(messages []json.RawMessage) ([]byte, error) { return writeJSON(messages) }

// writeJSON writes as encoding/json does, with < > and & as they are.
func writeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}
