package mcptools

import (
	"encoding/json"
	"fmt"
)

// Endpoint is the URL of a server that listens on addr.
func Endpoint(addr string) string { return "http://" + addr + Path }

// AgentConfig is the configuration of an agent that is to use the server, in the form that
// most agents read: one server under mcpServers, by URL, with its token as a header. It
// holds a secret.
func AgentConfig(addr, token string) ([]byte, error) {
	type server struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	}
	text, err := json.MarshalIndent(map[string]map[string]server{"mcpServers": {
		ServerName: {Type: "http", URL: Endpoint(addr), Headers: map[string]string{"Authorization": "Bearer " + token}},
	}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write configuration of agents: %w", err)
	}
	return append(text, '\n'), nil
}
