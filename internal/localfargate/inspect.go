package localfargate

import (
	"fmt"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

// TaskState is a task as a test or a display sees it: what ECS says, and what is
// really there.
type TaskState struct {
	ID            string           `json:"id"`
	ARN           string           `json:"arn"`
	Cluster       string           `json:"cluster"`
	Family        string           `json:"family"`
	StartedBy     string           `json:"startedBy,omitempty"`
	LastStatus    string           `json:"lastStatus"`
	DesiredStatus string           `json:"desiredStatus"`
	StopCode      string           `json:"stopCode,omitempty"`
	StoppedReason string           `json:"stoppedReason,omitempty"`
	CreatedAt     time.Time        `json:"createdAt"`
	StoppedAt     time.Time        `json:"stoppedAt,omitzero"`
	Faults        Faults           `json:"faults"`
	Containers    []ContainerState `json:"containers"`
}

// ContainerState is one container of a [TaskState].
type ContainerState struct {
	Name      string        `json:"name"`
	ExitCode  *int          `json:"exitCode,omitempty"`
	Processes []box.Process `json:"processes"` // alive now, as the host numbers them
	// WorkDir, JournalDir and Log are host paths, there until Close.
	WorkDir    string `json:"workDir"`
	JournalDir string `json:"journalDir"`
	Log        string `json:"log"`
}

// Tasks is a snapshot of all tasks, by start.
func (s *Server) Tasks() []TaskState {
	now := box.ScanProcesses()
	s.mu.Lock()
	defer s.mu.Unlock()
	states := []TaskState{}
	for _, t := range s.order {
		states = append(states, t.state(now))
	}
	return states
}

// Task is a snapshot of one task, by id or ARN.
func (s *Server) Task(ref string) (TaskState, error) {
	now := box.ScanProcesses()
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return TaskState{}, err
	}
	return t.state(now), nil
}

// state shows the task. Call with the lock held.
func (t *task) state(at box.Scan) TaskState {
	out := TaskState{
		ID: t.id, ARN: t.arn, Cluster: t.cluster, Family: t.definition.Family, StartedBy: t.input.StartedBy,
		LastStatus: t.lastStatus, DesiredStatus: t.desiredStatus, StopCode: t.stopCode, StoppedReason: t.stoppedReason,
		CreatedAt: t.createdAt, StoppedAt: t.stoppedAt, Faults: *t.faults.Load(),
	}
	for _, c := range t.containers {
		dir := t.containerDir(c)
		state := ContainerState{
			Name: c.definition.Name, ExitCode: c.exitCode, Processes: []box.Process{},
			WorkDir: box.WorkDir(dir), JournalDir: box.HostJournalDir(dir), Log: box.LogFile(dir),
		}
		if b := c.box.Load(); b != nil {
			state.Processes = orEmpty(b.Processes(at))
		}
		out.Containers = append(out.Containers, state)
	}
	return out
}

// anyTask finds a task of any cluster. Call with the lock held.
func (s *Server) anyTask(ref string) (*task, error) {
	for _, t := range s.order {
		if t.id == ref || t.arn == ref {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownTask, ref)
}

// SetFaults changes what goes wrong in a task, from the next frame or call on.
func (s *Server) SetFaults(ref string, f Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return err
	}
	t.faults.Store(&f)
	t.refused = 0
	return nil
}

// DefaultFaults are what new tasks begin with.
func (s *Server) DefaultFaults() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// SetDefaultFaults changes what new tasks begin with.
func (s *Server) SetDefaultFaults(f Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
	return nil
}

// KillTask lets a task die by itself: its main processes are killed, as by a crash
// or for want of memory, and ECS finds out. A task without a running container is [ErrNotRunning].
func (s *Server) KillTask(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return err
	}
	killed := false
	for _, c := range t.containers {
		if c.lastStatus != statusRunning {
			continue
		}
		if err := c.box.Load().Signal(syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill task %s: %w", ref, err)
		}
		killed = true
	}
	if !killed {
		return fmt.Errorf("kill task %s: %w", ref, ErrNotRunning)
	}
	return nil
}

// InterruptTask takes back the capacity of a running task, as Fargate Spot does; see
// [Habits].
func (s *Server) InterruptTask(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return err
	}
	if t.lastStatus != statusRunning || t.stopCode != "" {
		return fmt.Errorf("interrupt task %s: %w", ref, ErrNotRunning)
	}
	select {
	case t.reclaimed <- struct{}{}:
	default: // it has been told
	}
	return nil
}

// AgeTask has a task created, and started, by that much earlier than it was; the duration
// must not be negative. Audits give young tasks time, and nobody waits for an hour.
func (s *Server) AgeTask(ref string, by time.Duration) error {
	if by < 0 {
		return fmt.Errorf("age task %s: want a duration from 0 on, got %s", ref, by)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.anyTask(ref)
	if err != nil {
		return err
	}
	for _, at := range []*time.Time{&t.createdAt, &t.startedAt, &t.pullStartedAt, &t.pullStoppedAt} {
		if !at.IsZero() {
			*at = at.Add(-by)
		}
	}
	return nil
}
