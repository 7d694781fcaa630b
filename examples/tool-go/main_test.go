package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTools(t *testing.T) {
	tests := []struct{ name, event, want, err string }{
		{"a text", `{"name":"lookup","args":{"key":"a"}}`, `"value of a"`, ""},
		{"a failure", `{"name":"lookup","args":{"key":"missing"}}`, "", `lookup "missing": no such key`},
		{"bad arguments", `{"name":"lookup","args":{}}`, "", `want {"key": text}`},
		{"whom it is called for", `{"name":"whoami","args":{"tenant":"other"},"context":{"tenant":"acme","thread":"t","run":"r"}}`, `{"tenant":"acme","thread":"t","run":"r"}`, ""},
		{"a wait", `{"name":"wait","args":{"seconds":0.001}}`, `{"waited":0.001}`, ""},
		{"too long a wait", `{"name":"wait","args":{"seconds":1000}}`, "", "want {\"seconds\": 0 to 120}"},
		{"a hook", `{"hook":"ready","thread":"t","run":"r","detail":{}}`, `null`, ""},
		{"a hook that refuses", `{"hook":"ready","thread":"closed-t","run":"r","detail":{}}`, "", "thread closed-t is closed"},
		{"another tool", `{"name":"rm","args":{}}`, "", "want one of lookup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c call
			if err := json.Unmarshal([]byte(tt.event), &c); err != nil {
				t.Fatal(err)
			}
			answer, err := handle(t.Context(), c)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if text, _ := json.Marshal(answer); err != nil || string(text) != tt.want {
				t.Errorf("answered %s, %v, want %s", text, err, tt.want)
			}
		})
	}
}
