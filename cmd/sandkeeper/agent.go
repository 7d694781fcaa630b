package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// agentCommand plays a coding agent for the demo: it writes NDJSON to stdout as
// such agents do, and the same bytes to a copy that the demo compares the saved
// transcript with.
type agentCommand struct {
	Copy     string        `required:"" type:"path" help:"File that gets the same bytes."`
	Lines    int           `default:"10" help:"Events to write."`
	Every    time.Duration `help:"Pause between events."`
	Pad      int           `help:"Bytes of text in each event, at least."`
	Text     string        `default:"working" help:"Text of each event."`
	Open     bool          `help:"Leave the newline of the last event out."`
	Stay     bool          `help:"Stay alive after the last event until SIGTERM."`
	ExitWith int           `help:"Exit status."`
	Stderr   string        `help:"Last words on stderr."`
	Work     string        `help:"Leave files in the working directory, made from this text."`
	Big      int64         `help:"Bytes of the largest of them."`
	Ask      string        `help:"Call the host's tool lookup with this key first, and tell the answer."`
	Read     string        `help:"A file of the working directory that is told in each event."`
}

// event has the shape of a coding agent's stream.
type event struct {
	Type    string  `json:"type"`
	Seq     int     `json:"seq"`
	Message message `json:"message"`
}

type message struct {
	Role    string    `json:"role"`
	Content []content `json:"content"`
}

type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// Run writes the events and ends as asked. SIGTERM ends it between two events, so
// that both files hold the same.
func (c *agentCommand) Run() error {
	copied, err := os.Create(c.Copy)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if c.Read != "" {
		text, err := os.ReadFile(c.Read)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		c.Text = string(text)
	}
	if c.Ask != "" {
		if c.Text, err = askTool(c.Ask); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
	}
	out := bufio.NewWriter(io.MultiWriter(os.Stdout, copied))
	for i := range c.Lines {
		if err := c.write(out, i); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		select {
		case <-term:
			os.Exit(128 + int(syscall.SIGTERM))
		case <-time.After(c.Every):
		}
	}
	if c.Stay {
		<-term
		os.Exit(128 + int(syscall.SIGTERM))
	}
	if c.Work != "" {
		if err := (work{root: ".", seed: c.Work, big: c.Big}).leave(); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
	}
	if c.Stderr != "" {
		fmt.Fprintln(os.Stderr, c.Stderr)
	}
	os.Exit(c.ExitWith)
	return nil
}

func (c *agentCommand) write(out *bufio.Writer, i int) error {
	text := c.Text
	if n := c.Pad - len(text); n > 0 {
		text += strings.Repeat(" and on", n/7+1)
	}
	line, err := json.Marshal(event{Type: "assistant", Seq: i, Message: message{Role: "assistant", Content: []content{{"text", text}}}})
	if err != nil {
		return err
	}
	out.Write(line)
	if !c.Open || i < c.Lines-1 {
		out.WriteByte('\n')
	}
	return out.Flush()
}
