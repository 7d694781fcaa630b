package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// toolWithin bounds what the demo's agent waits for a tool.
const toolWithin = time.Minute

// askTool calls the host's tool lookup as an agent does: by MCP, at the server beside it.
func askTool(key string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolWithin)
	defer cancel()
	url := os.Getenv(core.MCPURLVariable)
	if url == "" {
		return "", errors.New(core.MCPURLVariable + ": want the address of the MCP server")
	}
	transport := &mcp.StreamableClientTransport{
		Endpoint: url, HTTPClient: &http.Client{Transport: bearer(os.Getenv(core.MCPTokenVariable))}, DisableStandaloneSSE: true,
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "demo-agent", Version: "1"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		return "", fmt.Errorf("connect to the tools: %w", err)
	}
	defer session.Close()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "lookup", Arguments: map[string]any{"key": key}})
	if err != nil {
		return "", fmt.Errorf("call lookup: %w", err)
	}
	if len(result.Content) != 1 {
		return "", fmt.Errorf("call lookup: want one piece of content, got %d", len(result.Content))
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok || result.IsError {
		return "", fmt.Errorf("call lookup: %+v", result.Content[0])
	}
	return text.Text, nil
}

// bearer is the token that the MCP server wants with each request.
type bearer string

// RoundTrip implements [http.RoundTripper].
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
