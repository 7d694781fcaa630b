package console

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar tells a person at a terminal how far long work is; elsewhere it is silent.
type Bar struct{ bar *progressbar.ProgressBar }

// Bar begins the bar of so many pieces of work, with how many are done, how fast, and how
// long the rest will take. Of work whose size nobody knows, which is 0, it tells how long
// it has taken.
func (c *Console) Bar(total int64, format string, args ...any) *Bar {
	if !c.ErrTerminal {
		return &Bar{}
	}
	if total <= 0 {
		total = -1
	}
	return &Bar{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(c.Err), progressbar.OptionSetDescription(Clean(fmt.Sprintf(format, args...))),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetWidth(24), progressbar.OptionThrottle(barEvery),
		progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true), progressbar.OptionSetRenderBlankState(true),
	)}
}

// barEvery is how often a bar is drawn at most.
const barEvery = 100 * time.Millisecond

// Of says anew what is worked on, and how many pieces are done.
func (b *Bar) Of(done int64, format string, args ...any) {
	if b.bar != nil {
		b.bar.Describe(Clean(fmt.Sprintf(format, args...)))
		_ = b.bar.Set64(done) // a bar that cannot be drawn holds nothing up
	}
}

// At says how many pieces are done.
func (b *Bar) At(done int64) {
	if b.bar != nil {
		_ = b.bar.Set64(done)
	}
}

// Done removes the bar.
func (b *Bar) Done() {
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}
