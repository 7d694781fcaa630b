package main

import (
	"context"
	"encoding/json"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// prober is what calls can ask for.
type prober interface {
	core.Prober
	core.JournalDirectory
}

var _ prober = (*core.JournalProber)(nil)

type handler struct{ prober prober }

// handle answers one call. It fails only for a call that is malformed, and then no
// sandbox was asked.
func (h handler) handle(ctx context.Context, event json.RawMessage) (core.ProbeAnswer, error) {
	call, err := core.DecodeProbeCall(event)
	if err != nil {
		return core.ProbeAnswer{}, err
	}
	return core.ServeProbe(ctx, h.prober, call)
}
