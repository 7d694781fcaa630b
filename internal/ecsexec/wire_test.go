package ecsexec_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
)

// Against local Fargate, whose gateway and agent are written from the same survey but
// by other code, with the agent's real waits: on a clean line every session answers;
// at 10 % loss each way an answer that comes is the right one.
func TestWireIsNeverWrong(t *testing.T) {
	for _, c := range []struct {
		name     string
		faults   localfargate.Faults
		sessions int
		answered int // at least
	}{
		{"on a clean line", localfargate.Faults{}, 6, 6},
		{"at 10 % loss each way", localfargate.Faults{LossToClient: 0.1, LossToAgent: 0.1}, 12, 10},
		{"at 10 % loss, doubled and swapped each way", localfargate.Faults{
			LossToClient: 0.1, LossToAgent: 0.1, DuplicateToClient: 0.1, DuplicateToAgent: 0.1,
			ReorderToClient: 0.1, ReorderToAgent: 0.1,
		}, 12, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newSandbox(t, scene{options: func(o *localfargate.Options) { o.Habits.Channel = datachannel.RealHabits() }})
			answered := 0
			for seed := range uint64(c.sessions) {
				c.faults.Seed = seed + 1
				faulty(c.faults)(b)
				answered += b.ask(seed)
			}
			t.Logf("%d of %d sessions answered, none wrong", answered, c.sessions)
			if answered < c.answered {
				t.Errorf("answered: got %d of %d sessions, want %d", answered, c.sessions, c.answered)
			}
		})
	}
}

// ask runs one script whose answer is known, sized by the seed: input or none, a
// script that is typed or not. It returns 1 if the answer came.
func (b *sandbox) ask(seed uint64) int {
	b.Helper()
	random := rand.New(rand.NewPCG(seed, 3))
	var input []byte
	if seed%2 == 1 {
		input = make([]byte, 1+random.IntN(8_000))
		for i := range input {
			input[i] = byte(random.Uint32())
		}
	}
	lines, status := random.IntN(4_000), random.IntN(126)
	script := fmt.Sprintf("cat; i=0; while [ $i -lt %d ]; do echo line-$i; i=$((i+1)); done; exit %d\n", lines, status)
	if seed%4 == 3 {
		script += string(bytes.Repeat([]byte("# as long as a command must not be\n"), 250))
	}
	want := bytes.Clone(input)
	for i := range lines {
		want = fmt.Appendf(want, "line-%d\n", i)
	}
	begin := time.Now()
	got, err := b.exec.Exec(b.Context(), b.target, script, input)
	if err != nil {
		if e := execError(b.T, err); e.Healing != core.Retry {
			b.Errorf("session %d: %v; want no fault that does not heal", seed, e)
		}
		b.Logf("session %d (%d bytes): %v after %v", seed, len(want), err, time.Since(begin).Round(time.Millisecond))
		return 0
	}
	if got.Exit != status || !bytes.Equal(got.Stdout, want) {
		b.Errorf("session %d: a wrong answer: exit %d, %d bytes; want exit %d, %d bytes", seed, got.Exit, len(got.Stdout), status, len(want))
	}
	b.Logf("session %d (%d bytes) took %v", seed, len(want), time.Since(begin).Round(time.Millisecond))
	return 1
}
