package wrapper

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/side"
)

// SideCommand is the word behind the program's name of an agent's companion.
const SideCommand = "side"

// How patient the wrapper is with a companion. Whatever it does, the agent begins and the
// journal is closed.
const (
	sideTell    = 3 * time.Second // for a line to be taken
	sideReady   = 3 * time.Second // for tools to be served, before the agent begins without
	sideStarts  = 6               // of one run
	sideBackoff = time.Second     // before the second; twice as long before each that follows
)

// companion is the process beside the agent, as the wrapper has it.
type companion struct {
	config side.Config
	log    *os.File   // what it says on stderr
	mu     sync.Mutex // a child's end waits until its beginning is written down
	pid    int        // 0: none that has not been taken in
	starts int
	tell   *os.File
	said   chan side.Said
	died   chan int  // its process id, from whoever reaps
	agents string    // path of the configuration that the agent is given
	until  time.Time // once the run is over, when it has to have ended
	over   side.Told // that it is
}

// newCompanion is the companion that the run's job asks for; nil: none.
func (w *wrapping) newCompanion() *companion {
	if w.Side == nil {
		return nil
	}
	c := &companion{
		config: side.Config{
			Side: *w.Side, Run: w.Run, Journal: w.Journal, Marker: w.Marker, Files: filepath.Join(w.JournalPaths.Dir, w.Token+".files"), Root: w.root(),
		},
		died: make(chan int, 1),
	}
	c.log, _, _ = openRegular(w.in("side.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE) // it does without
	return c
}

// root is where the workspace lies, as everything in the sandbox takes it.
func (w *wrapping) root() string {
	env, dir, _ := w.main.surroundings()
	for _, entry := range env {
		if root, ok := strings.CutPrefix(entry, core.WorkspaceVariable+"="); ok && filepath.IsAbs(root) {
			return root
		}
	}
	if info, err := os.Stat(core.DefaultWorkspace); err == nil && info.IsDir() {
		return core.DefaultWorkspace
	}
	if filepath.IsAbs(dir) {
		return dir
	}
	return "/"
}

// note records what became of the companion, for whoever looks into the marker.
func (c *companion) note(what string) {
	if c.log != nil {
		_, _ = c.log.WriteString("wrapper: " + time.Now().UTC().Format(time.RFC3339) + " " + what + "\n")
	}
}

// start starts the companion. Its orders go by a pipe, its environment is this process'
// own, in which none of the run's secrets is.
func (c *companion) start() {
	c.starts++
	told, tell, err := os.Pipe()
	if err != nil {
		c.note("start: " + err.Error())
		return
	}
	heard, say, err := os.Pipe()
	if err != nil {
		told.Close()
		tell.Close()
		c.note("start: " + err.Error())
		return
	}
	err = c.fork(told, say)
	told.Close()
	say.Close()
	if err != nil {
		tell.Close()
		heard.Close()
		c.note("start: " + err.Error())
		return
	}
	c.tell, c.said = tell, make(chan side.Said, 8)
	go hearSide(heard, c.said)
	c.send(c.config)
}

// fork makes the process.
func (c *companion) fork(told, say *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	stderr := null
	if c.log != nil {
		stderr = c.log
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{core.WrapperName, SideCommand}, &syscall.ProcAttr{
		Env: os.Environ(), Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), stderr.Fd(), told.Fd(), say.Fd()},
		// Not of the agent's group: it is not meant by what ends that.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err == nil {
		c.pid = pid
	}
	return err
}

// hearSide passes on what a companion says until it says no more.
func hearSide(heard *os.File, said chan<- side.Said) {
	defer heard.Close()
	defer close(said)
	lines := bufio.NewReaderSize(io.LimitReader(heard, maxLine), maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		var s side.Said
		if json.Unmarshal(line, &s) != nil {
			return
		}
		select {
		case said <- s:
		default: // nobody waits for it
		}
	}
}

// send tells the companion something. One that does not take it is ended.
func (c *companion) send(v any) bool {
	if c.tell == nil {
		return false
	}
	line, err := json.Marshal(v)
	if err == nil {
		_ = c.tell.SetWriteDeadline(time.Now().Add(sideTell)) // a pipe always takes one
		_, err = c.tell.Write(append(line, '\n'))
	}
	if err != nil {
		c.note("it takes no word: it is ended")
		c.kill()
	}
	return err == nil
}

func (c *companion) kill() {
	if pid := c.alive(); pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// alive is the companion's process id; 0: it has none.
func (c *companion) alive() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pid
}

// reaped takes note of a child's end and tells whether it was the companion.
func (c *companion) reaped(pid int) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if pid != c.pid || pid == 0 {
		return false
	}
	c.pid = 0
	select {
	case c.died <- pid:
	default:
	}
	return true
}

// again has a companion that ended before its time started anew, a few times: when, and
// whether at all.
func (c *companion) again() (<-chan time.Time, bool) {
	if c.starts >= sideStarts {
		c.note("it has ended too often: the run goes on without")
		return nil, false
	}
	c.note("it has ended: it is started again")
	c.close()
	return time.After(sideBackoff << (c.starts - 1)), true
}

func (c *companion) close() {
	if c.tell != nil {
		c.tell.Close()
		c.tell = nil
	}
}

// hear waits for a word of the companion's.
func (c *companion) hear(most time.Duration, is func(side.Said) bool) bool {
	timeout := time.After(most)
	for {
		select {
		case s, ok := <-c.said:
			switch {
			case !ok:
				return false
			case is(s):
				return true
			}
		case <-timeout:
			return false
		}
	}
}

// beginSide starts the companion, waits for tools that the agent is to find, and for a watch
// that is to miss nothing, and returns what goes into the agent's environment.
func (w *wrapping) beginSide() []string {
	if w.side == nil {
		return nil
	}
	w.side.start()
	serves := len(w.Side.Tools) > 0 || w.Side.Policy != nil
	if !serves && w.Side.Watch == nil || w.side.said == nil {
		return nil
	}
	var ready side.Ready
	watching := w.Side.Watch == nil
	w.side.hear(sideReady, func(s side.Said) bool {
		watching = watching || s.Watching
		if s.Ready != nil {
			ready = *s.Ready
		}
		return watching && (!serves || ready.URL != "")
	})
	if !watching {
		w.side.note("it watches no files yet: the agent begins all the same")
	}
	if ready.URL == "" {
		if serves {
			w.side.note("it serves no tools: the agent begins without")
		}
		return nil
	}
	w.side.config.Addr, w.side.config.Token = ready.Addr, ready.Token
	env := []string{core.MCPURLVariable + "=" + ready.URL, core.MCPTokenVariable + "=" + ready.Token}
	path, err := w.leaveAgents(ready.Agents)
	if err != nil {
		w.side.note("leave the configuration of agents: " + err.Error())
		return env
	}
	w.side.agents = path
	return append(env, core.MCPConfigVariable+"="+path)
}

// leaveAgents leaves the configuration of agents where the agent's user, and nobody else,
// can read it.
func (w *wrapping) leaveAgents(text string) (string, error) {
	dir, err := os.MkdirTemp("", "sandkeeper-mcp-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mcp.json")
	err = os.WriteFile(path, []byte(text), 0o600)
	if err == nil && w.main.uid != 0 {
		if err = os.Chown(path, w.main.uid, w.main.gid); err == nil {
			err = os.Chown(dir, w.main.uid, w.main.gid)
		}
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return path, nil
}

// overSide tells the companion that the agent, and what it left, has ended, and waits until
// every change of a file is told: the sentinel follows.
func (w *wrapping) overSide() {
	c := w.side
	if c == nil {
		return
	}
	c.until = time.Now().Add(side.Grace)
	c.over = side.Told{Over: true}
	if info, err := w.journal.Stat(); err == nil {
		c.over.End = info.Size()
	}
	w.tellSide(c.over)
	if w.Side.Watch != nil && c.alive() != 0 && !c.hear(side.DrainGrace, func(s side.Said) bool { return s.Drained }) {
		c.note("it has not told all changes of files in time")
	}
}

// tellSide tells the companion how far the run is. One that has ended before its time has
// this much to do yet.
func (w *wrapping) tellSide(t side.Told) {
	c := w.side
	w.reaped()
	if c.alive() != 0 && c.send(t) {
		return
	}
	if c.starts >= sideStarts || !w.gone(c, c.until) {
		return
	}
	c.note("it has ended: it is started again for the end")
	c.close()
	c.start()
	c.send(c.over)
	if t != c.over {
		c.send(t)
	}
}

// endSide tells the companion that the sentinel is there, gives it the rest of its grace,
// and leaves nothing of it.
func (w *wrapping) endSide(status int, sealed bool) {
	c := w.side
	if c == nil {
		return
	}
	if sealed {
		w.tellSide(side.Told{Sealed: true, Exit: status})
		if !w.gone(c, c.until) {
			c.note("it has not ended in time: it is ended")
		}
	}
	c.close()
	c.kill()
	w.gone(c, time.Now().Add(leftKill))
	w.killLeft()
	if c.agents != "" {
		os.RemoveAll(filepath.Dir(c.agents))
	}
}

// gone waits until the companion has ended.
func (w *wrapping) gone(c *companion, until time.Time) bool {
	for w.reaped(); c.alive() != 0; w.reaped() {
		if time.Now().After(until) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}
