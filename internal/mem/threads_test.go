package mem_test

import (
	"context"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// shelf is a process's view of a store of threads. Its seeds make histories that none
// leads to, so that nobody is accused.
func shelf(s *mem.Store, p *mem.Process) coretest.Shelf {
	return coretest.Shelf{
		Threads:        p,
		SeedThread:     func(_ context.Context, th core.Thread) error { s.SeedThread(th); return nil },
		SeedCheckpoint: func(_ context.Context, c core.Checkpoint) error { s.SeedCheckpoint(c); return nil },
	}
}

func openShelf(t *testing.T) coretest.Shelf {
	s := mem.New(&complaints{TB: t})
	return shelf(s, s.Process)
}

func TestThreads(t *testing.T) {
	t.Run("contract", func(t *testing.T) { coretest.Threads(t, openShelf) })
	t.Run("transitions", func(t *testing.T) { coretest.ThreadTransitions(t, openShelf) })
	t.Run("commits", func(t *testing.T) { coretest.RandomCommits(t, openShelf) })
	t.Run("faults", func(t *testing.T) {
		faults := map[coretest.Fault]mem.Fault{coretest.NotLanded: mem.NotLanded, coretest.AnswerLost: mem.AnswerLost}
		coretest.ThreadFaults(t, func(t *testing.T, f coretest.Fault) (sound, broken coretest.Shelf) {
			s := mem.New(&complaints{TB: t})
			return shelf(s, s.Process), shelf(s, s.NewProcess(mem.At(1, faults[f])))
		})
	})
}
