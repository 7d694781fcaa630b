package client_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/client"
)

const (
	asked    = `{"role":"user","content":"what files are there?"}`
	answered = `{"role":"assistant","content":"one, a < b"}`
)

// journal is what an agent's command line writes of one call.
func journal(id, result string) string {
	return fmt.Sprintf(`{"type":"system","subtype":"init"}
not JSON
{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"I look"},{"type":"tool_use","id":%[1]q,"name":"Bash","input":{"command":"ls"}}]}}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":%[1]q,"content":%[2]q}]}}
{"type":"result","result":"one"}
`, id, result)
}

func call(id string) string {
	return `{"role":"assistant","content":[{"type":"tool_use","id":"` + id + `","name":"Bash","input":{"command":"ls"},"observed":true}]}`
}

func result(id, text string) string {
	return `{"role":"user","content":[{"type":"tool_result","tool_use_id":"` + id + `","content":"` + text + `","observed":true}]}`
}

func array(messages ...string) string { return "[" + strings.Join(messages, ",") + "]" }

func TestObservedCallsAreMerged(t *testing.T) {
	for what, c := range map[string]struct{ conversation, journal, want string }{
		"behind the prompt, before the answer": {array(asked, answered), journal("c1", "one"), array(asked, call("c1"), result("c1", "one"), answered)},
		"into none":                            {"", journal("c1", "one"), array(call("c1"), result("c1", "one"))},
		"none into none":                       {"", "hello\n", ""},
		"none: as it was, byte for byte":       {"[ " + asked + " ]", "hello\n", "[ " + asked + " ]"},
		"behind the turns that were before":    {array(asked, call("c1"), result("c1", "one"), answered, asked, answered), journal("c2", "two"), array(asked, call("c1"), result("c1", "one"), answered, asked, call("c2"), result("c2", "two"), answered)},
		"behind what was merged before":        {array(asked, call("c1"), result("c1", "one"), answered), journal("c1", "one") + journal("c2", "two"), array(asked, call("c1"), result("c1", "one"), call("c2"), result("c2", "two"), answered)},
		"not a call that the host has made": {
			array(asked, `{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}]}`, `{"role":"tool","tool_call_id":"c1","content":"one"}`), journal("c1", "one"),
			array(asked, `{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}]}`, `{"role":"tool","tool_call_id":"c1","content":"one"}`),
		},
		"not a result without its call": {array(asked), `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c9","content":"x"}]}`, array(asked)},
		"a call that was cut short":     {array(asked), `{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"Bash","input":{"command":"ls"}}]}`, array(asked, call("c1"))},
		"what is too long is left out": {
			"", journal("c1", strings.Repeat("x", 64<<10)),
			array(call("c1"), `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","truncated":true,"observed":true}]}`),
		},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := client.MergeObserved([]byte(c.conversation), []byte(c.journal))
			if err != nil || string(got) != c.want {
				t.Fatalf("merged as\n%s, %v, want\n%s", got, err, c.want)
			}
			again, err := client.MergeObserved(got, []byte(c.journal))
			if err != nil || string(again) != string(got) {
				t.Errorf("merged again as\n%s, %v", again, err)
			}
		})
	}
}

func TestObservedCallsAreStripped(t *testing.T) {
	mixed := `{"role":"assistant","id":"m","content":[{"type":"text","text":"a < b"},{"type":"tool_use","id":"c1","name":"Bash","input":{},"observed":true}]}`
	for what, c := range map[string]struct{ conversation, want string }{
		"whole messages":                    {array(asked, call("c1"), result("c1", "one"), answered), array(asked, answered)},
		"of a mixed one, what was observed": {array(mixed), array(`{"content":[{"type":"text","text":"a < b"}],"id":"m","role":"assistant"}`)},
		"not a call of the host's own":      {array(`{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"x","input":{}}]}`), array(`{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"x","input":{}}]}`)},
		"nothing":                           {"", "[]"},
	} {
		got, err := client.StripObserved([]byte(c.conversation))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: stripped to %s, %v, want %s", what, got, err, c.want)
		}
	}
}

func TestAConversationThatIsNoArrayIsRefused(t *testing.T) {
	for _, bad := range []string{`{}`, `"text"`, `[`} {
		if _, err := client.MergeObserved([]byte(bad), []byte(journal("c", "x"))); err == nil || !strings.Contains(err.Error(), "want a JSON array") {
			t.Errorf("merge into %s: %v", bad, err)
		}
		if _, err := client.StripObserved([]byte(bad)); err == nil || !strings.Contains(err.Error(), "want a JSON array") {
			t.Errorf("strip %s: %v", bad, err)
		}
	}
}

// TestManyCallsStayWithinWhatOneCallSaves: an agent decides how much it writes.
func TestManyCallsStayWithinWhatOneCallSaves(t *testing.T) {
	var all strings.Builder
	for i := range 200 {
		all.WriteString(journal(fmt.Sprint("c", i), strings.Repeat("x", 20<<10)))
	}
	merged, err := client.MergeObserved(nil, []byte(all.String()))
	if err != nil || len(merged) > 2<<20 || strings.Count(string(merged), `"tool_result"`) != 200 {
		t.Errorf("%d bytes, %d results, %v", len(merged), strings.Count(string(merged), `"tool_result"`), err)
	}
}

// FuzzObserved: whatever an agent writes, a merge can be repeated, changes nothing that
// was there, and is gone after a strip.
func FuzzObserved(f *testing.F) {
	f.Add(array(asked, answered), journal("c1", "one"))
	f.Add(array(asked, call("c1"), result("c1", "one")), journal("c2", "x")+journal("c1", "y"))
	f.Add(`[1,null,{"role":"user","content":[1,{"type":3}]}]`, `{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":[1e400]}]}`)
	f.Fuzz(func(t *testing.T, conversation, output string) {
		merged, err := client.MergeObserved([]byte(conversation), []byte(output))
		if err != nil {
			return
		}
		again, err := client.MergeObserved(merged, []byte(output))
		if err != nil || string(again) != string(merged) {
			t.Fatalf("again: %q, %v, want %q", again, err, merged)
		}
		before, err := client.StripObserved([]byte(conversation))
		if err != nil {
			t.Fatal(err)
		}
		after, err := client.StripObserved(merged)
		if err != nil || !same(t, before, after) {
			t.Fatalf("stripped to %q, %v, want %q", after, err, before)
		}
	})
}

func same(t *testing.T, a, b []byte) bool {
	var x, y []json.RawMessage
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		t.Fatalf("no arrays: %q, %q", a, b)
	}
	return reflect.DeepEqual(x, y)
}
