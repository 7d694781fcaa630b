package main

import (
	"fmt"
	"os"

	"github.com/sandkeeper/sandkeeper/internal/transfer"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// progress is a line on stderr that is written over.
type progress struct {
	show bool
	some bool
}

func (p *progress) tell(kind transfer.JobKind, at workspace.Progress) {
	p.say(fmt.Sprintf("%s: %d files, %.1f MB", kind, at.Files, float64(at.Bytes)/1e6))
}

func (p *progress) say(text string) {
	if !p.show {
		return
	}
	p.some = true
	fmt.Fprintf(os.Stderr, "\r\x1b[K%s", text)
}

func (p *progress) end() {
	if p.some {
		fmt.Fprintln(os.Stderr)
	}
}
