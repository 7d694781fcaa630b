package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mcptools"
)

// maxToolsJob is the longest job of the tools server, bytes.
const maxToolsJob = 4 << 20

// toolsJob is what the tools server serves: what stands beside a run's agent, the
// workspace, and, if they are not to be chosen, token and address.
type toolsJob struct {
	core.Side
	Root  string `json:"root,omitempty"`
	Token string `json:"token,omitempty"`
	Addr  string `json:"addr,omitempty"`
}

// toolsPlace is where the server is, and what an agent has to send.
type toolsPlace struct {
	URL    string          `json:"url"`
	Token  string          `json:"token"`
	Config json.RawMessage `json:"config"` // of an agent
}

// tools serves a run's tools by MCP on loopback, until it is told to end.
func tools(args []string) int {
	if len(args) > 0 {
		return complain(fmt.Sprintf("tools: want no words behind it, got %q", args[0]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := readTools(os.Stdin)
	if err != nil {
		return complain("tools: " + err.Error())
	}
	place, err := serveTools(ctx, c)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(place)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandkeeper-agent: tools: %v\n", err)
		return exitFailed
	}
	<-ctx.Done()
	return exitDone
}

func readTools(in io.Reader) (mcptools.Config, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxToolsJob+1))
	switch {
	case err != nil:
		return mcptools.Config{}, fmt.Errorf("read job: %w", err)
	case len(data) > maxToolsJob:
		return mcptools.Config{}, fmt.Errorf("want a job of at most %d bytes", maxToolsJob)
	}
	var job toolsJob
	if err := core.DecodeStrict(data, &job); err != nil {
		return mcptools.Config{}, fmt.Errorf("want a job as one JSON object: %w", err)
	}
	c, err := mcptools.FromSide(job.Side, job.Root)
	if c.Token, c.Addr = job.Token, job.Addr; c.Token == "" {
		c.Token = mcptools.NewToken()
	}
	return c, err
}

func serveTools(ctx context.Context, c mcptools.Config) (toolsPlace, error) {
	if info, ok := debug.ReadBuildInfo(); ok {
		c.Version = info.Main.Version
	}
	addr, err := mcptools.Serve(ctx, c)
	if err != nil {
		return toolsPlace{}, err
	}
	config, err := mcptools.AgentConfig(addr, c.Token)
	return toolsPlace{URL: mcptools.Endpoint(addr), Token: c.Token, Config: config}, err
}
