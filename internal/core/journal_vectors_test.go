package core_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ = exemptVectors(
	vectorExemption{
		file:   "runid_decode",
		cases:  namesOtherwiseWritten,
		reason: "decoding is canonical: a name that the encoder does not write is malformed",
	},
	vectorExemption{
		file:   "prune",
		cases:  listsNamesOtherwiseWritten,
		reason: "decoding is canonical: a name that the encoder does not write is kept as undecodable",
	},
	vectorExemption{
		file:   "journal_read",
		cases:  stderrIsLong,
		reason: "the message is the end of stderr",
	},
)

// originalFormat is a journal format with the constants of the vectors, of any file
// where the case's own has none.
func originalFormat(t *testing.T, c vectorCase) core.JournalFormat {
	t.Helper()
	if c.Constants["journalDir"] == nil {
		c.Constants = readVectors(t, "nonce").Constants
	}
	var f core.JournalFormat
	for name, into := range map[string]any{
		"journalDir": &f.Dir, "journalExt": &f.Ext, "stderrExt": &f.ErrExt, "nonceDomain": &f.NonceDomain,
		"nonceHexLength": &f.NonceHex, "sentinelExitKey": &f.ExitKey, "sentinelNonceKey": &f.NonceKey,
		"maxEncodedLength": &f.MaxToken, "truncationHashHexLength": &f.HashHex,
	} {
		c.constant(t, name, into)
	}
	return f
}

// differ compares got and want, which are of one type.
func differ[T any](got, want T) error {
	if reflect.DeepEqual(got, want) {
		return nil
	}
	return fmt.Errorf("got %+v, want %+v", got, want)
}

func TestRunIDEncodeVectors(t *testing.T) {
	forEachVector(t, "runid_encode", func(t *testing.T, c vectorCase) error {
		var in struct {
			RunID wtf8
			Dir   *string
		}
		type result struct {
			Token, Dir, Journal, Stderr string
			Error                       bool
		}
		var want result
		c.decode(t, &in, &want)
		f := originalFormat(t, c)
		if in.Dir != nil {
			f.Dir = *in.Dir
		}
		p, err := f.Paths(core.RunID(in.RunID))
		return differ(result{p.Token, p.Dir, p.Journal, p.Stderr, err != nil}, want)
	})
}

func TestRunIDDecodeVectors(t *testing.T) {
	forEachVector(t, "runid_decode", func(t *testing.T, c vectorCase) error {
		var in struct{ Name wtf8 }
		type result struct{ Kind, RunID string }
		var want result
		c.decode(t, &in, &want)
		got := originalFormat(t, c).DecodeName(string(in.Name))
		return differ(result{string(got.Kind), string(got.Run)}, want)
	})
}

// namesOtherwiseWritten tells the names that the original decodes to a run whose
// files have another name. Quirks need no exemption.
func namesOtherwiseWritten(c vectorCase) bool {
	var in struct{ Name wtf8 }
	var want struct{ Kind, RunID string }
	if json.Unmarshal(c.Input, &in) != nil || json.Unmarshal(c.Want, &want) != nil || want.Kind != "runId" || c.Quirk != "" {
		return false
	}
	return !canonicalName(string(in.Name), want.RunID)
}

func canonicalName(name, run string) bool {
	token, err := core.DefaultJournal.Token(core.RunID(run))
	return err == nil && (name == token+".ndjson" || name == token+".err")
}

func listsNamesOtherwiseWritten(c vectorCase) bool {
	var in struct{ LsStdout string }
	var want struct{ StoreLookups []string }
	if json.Unmarshal(c.Input, &in) != nil || json.Unmarshal(c.Want, &want) != nil || c.Quirk != "" {
		return false
	}
	names := core.ParseJournalNames(in.LsStdout)
	return slices.ContainsFunc(want.StoreLookups, func(run string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return canonicalName(name, run) })
	})
}

func TestNonceVectors(t *testing.T) {
	forEachVector(t, "nonce", func(t *testing.T, c vectorCase) error {
		var in struct{ RunID wtf8 }
		var want struct{ Nonce string }
		c.decode(t, &in, &want)
		return differ(originalFormat(t, c).DerivedNonce(core.RunID(in.RunID)), want.Nonce)
	})
}

func TestSentinelLineVectors(t *testing.T) {
	forEachVector(t, "sentinel_line", func(t *testing.T, c vectorCase) error {
		var in struct {
			RunID    wtf8
			ExitCode int
		}
		var want struct{ Line string }
		c.decode(t, &in, &want)
		f := originalFormat(t, c)
		return differ(f.Sentinel(f.DerivedNonce(core.RunID(in.RunID)), in.ExitCode), want.Line)
	})
}

func TestParseExitVectors(t *testing.T) {
	forEachVector(t, "parse_exit", func(t *testing.T, c vectorCase) error {
		var in struct{ RunID, Text wtf8 }
		var want struct{ ExitCode *json.Number }
		c.decode(t, &in, &want)
		f := originalFormat(t, c)
		exit, ok := f.LastExit(f.DerivedNonce(core.RunID(in.RunID)), []byte(in.Text))
		switch {
		case ok != (want.ExitCode != nil):
			return fmt.Errorf("found %v %d, want %v", ok, exit, want.ExitCode)
		case !ok:
			return nil
		}
		return differ(fmt.Sprint(exit), want.ExitCode.String())
	})
}

func TestBase64FrameVectors(t *testing.T) {
	forEachVector(t, "base64_frame", func(t *testing.T, c vectorCase) error {
		var in struct{ Chunks []string }
		type result struct{ Base64, Error string }
		var want result
		c.decode(t, &in, &want)
		decoded, err := decodeFrame(in.Chunks)
		got := result{Base64: base64.StdEncoding.EncodeToString(decoded)}
		switch {
		case errors.Is(err, core.ErrFrameInvalid):
			got = result{Error: "invalid"}
		case errors.Is(err, core.ErrFrameTruncated):
			got = result{Error: "truncated"}
		}
		return differ(got, want)
	})
}

func decodeFrame(chunks []string) ([]byte, error) {
	var d core.JournalFrame
	var all []byte
	for _, chunk := range chunks {
		piece, err := d.Decode([]byte(chunk))
		if err != nil {
			return nil, err
		}
		all = append(all, piece...)
	}
	return all, d.Close()
}

func TestJournalLinesVectors(t *testing.T) {
	forEachVector(t, "journal_lines", func(t *testing.T, c vectorCase) error {
		var in struct {
			ChunksBase64  [][]byte
			StartPosition int64
		}
		type line struct {
			Line        string
			EndPosition int64
		}
		var want struct{ Lines []line }
		c.decode(t, &in, &want)
		lines := core.JournalLines{Position: in.StartPosition}
		got := []line{}
		for _, chunk := range in.ChunksBase64 {
			for _, l := range lines.Feed(chunk) {
				got = append(got, line{browserText(l.Text), l.End})
			}
		}
		return differ(got, want.Lines)
	})
}

// browserText decodes as the original does: one replacement character for each
// longest piece of a character that is cut short.
func browserText(text []byte) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		b.WriteRune(r)
		if r == utf8.RuneError && size == 1 {
			for size < len(text) && size < 4 && !utf8.RuneStart(text[size]) && !utf8.FullRune(text[:size+1]) {
				size++
			}
		}
		text = text[size:]
	}
	return b.String()
}

// The wrapper's journal differs from the original's by the newline in front of the
// sentinel; the agent's output, the status and the sidecar must not.
func TestJournaledExecVectors(t *testing.T) {
	forEachVector(t, "journaled_exec", func(t *testing.T, c vectorCase) error {
		var in struct {
			RunID    wtf8
			Commands []string
		}
		var want struct {
			JournalBase64 []byte
			ParsedExit    *int
			StderrBase64  *[]byte
		}
		c.decode(t, &in, &want)
		id := core.RunID(in.RunID)
		b := newBox(t, shells(t)[0])
		b.runs = originalFormat(t, c)
		nonce := b.runs.DerivedNonce(id)
		for _, command := range in.Commands {
			b.startWith(core.JournalStart{Run: id, Nonce: nonce, Shell: command}, "").wait()
			// The original begins as often as it is asked.
			if err := os.RemoveAll(b.marker(id)); err != nil {
				t.Fatal(err)
			}
		}
		journal := []byte(b.journal(id))
		var got *int
		if exit, ok := b.runs.LastExit(nonce, journal); ok {
			got = &exit
		}
		if err := differ(plain(b.runs, nonce, journal), string(want.JournalBase64)); err != nil {
			return err
		}
		if want.StderrBase64 != nil {
			if err := differ(readFile(t, b.paths(id).Stderr), string(*want.StderrBase64)); err != nil {
				return err
			}
		}
		return differ(got, want.ParsedExit)
	})
}

// plain is a journal of ours without the newline in front of each sentinel.
func plain(f core.JournalFormat, nonce string, journal []byte) string {
	var b []byte
	for line := range bytes.Lines(journal) {
		if _, ok := f.ParseSentinel(nonce, line); ok {
			b = bytes.TrimSuffix(b, []byte("\n"))
		}
		b = append(b, line...)
	}
	return string(b)
}

func (b *box) marker(id core.RunID) string {
	return strings.TrimSuffix(b.paths(id).Journal, b.runs.Ext) + core.DefaultJournal.MarkerExt
}

// A tail that the original received becomes a journal that our probe reads.
func TestProbeVectors(t *testing.T) {
	forEachVector(t, "probe", func(t *testing.T, c vectorCase) error {
		var in struct {
			RunID     wtf8
			Stdout    string
			ExecError bool
		}
		type result struct {
			State    string
			ExitCode int
			HasError bool
		}
		var want result
		c.decode(t, &in, &want)
		f := originalFormat(t, c)
		id := core.RunID(in.RunID)
		nonce := f.DerivedNonce(id)
		p := f.ParseProbe(nonce, nil)
		if tail, err := decodeFrame([]string{in.Stdout}); err == nil && !in.ExecError {
			b := newBox(t, shells(t)[0])
			b.runs = f
			b.write(id, string(tail))
			script, err := f.ProbeScript(id, nonce, 0)
			if err != nil {
				t.Fatal(err)
			}
			p = f.ParseProbe(nonce, b.run(script, "", nil))
		}
		state := string(p.State)
		if p.State == core.JournalUnknown {
			state = "unknown"
		}
		return differ(result{state, p.Exit, p.Reason != ""}, want)
	})
}

func TestMtimeListingVectors(t *testing.T) {
	forEachVector(t, "mtime_listing", func(t *testing.T, c vectorCase) error {
		type entry struct {
			Name    string
			MtimeMs int64
		}
		var in struct {
			Text string
			Dir  *string
		}
		var want struct {
			Kind    string
			Entries []entry
		}
		c.decode(t, &in, &want)
		dir := originalFormat(t, c).Dir
		if in.Dir != nil {
			dir = *in.Dir
		}
		times := core.ParseJournalTimes(in.Text, dir)
		var got []entry
		for _, e := range times.Of {
			got = append(got, entry{e.Name, int64(e.At)})
		}
		if times.Known != (want.Kind == "listed") || len(got) != len(want.Entries) {
			return fmt.Errorf("got %+v", times)
		}
		return differ(append([]entry{}, got...), append([]entry{}, want.Entries...))
	})
}

// pruneWorld answers a pruner's scripts and lookups as a case says.
type pruneWorld struct {
	t      *testing.T
	format core.JournalFormat
	in     pruneInput
	tried  []string
	asked  []string
}

type pruneInput struct {
	Now         core.Millis
	LsStdout    *string
	StatStdout  *string
	Runs        map[string]string
	Rm          map[string]any
	OrphanTTLMs *int64
	MaxDeletes  int
}

var errWorld = errors.New("as the case says")

func (w *pruneWorld) Exec(_ context.Context, _ core.ExecTarget, script string, _ []byte) (core.ExecResult, error) {
	if script == w.format.ListScript() {
		return w.list()
	}
	var gone strings.Builder
	for _, run := range w.removedBy(script) {
		w.tried = append(w.tried, string(run))
		flag := "1"
		if rm, faulty := w.in.Rm[string(run)]; faulty && rm != 0.0 {
			flag = "0"
		}
		gone.WriteString(flag)
	}
	return core.ExecResult{Stdout: []byte("sandkeeper-journal/1 gone=" + gone.String() + "\n\nsandkeeper-journal/1 end\n")}, nil
}

// removedBy tells the runs of a remove script by composing it again from those
// that the store was asked about.
func (w *pruneWorld) removedBy(script string) []core.RunID {
	var asked []core.RunID
	for _, run := range w.asked {
		asked = append(asked, core.RunID(run))
	}
	for from := range asked {
		for to := from + 1; to <= len(asked); to++ {
			if again, err := w.format.RemoveScript(asked[from:to]); err == nil && again == script {
				return asked[from:to]
			}
		}
	}
	w.t.Fatalf("a script that removes none of the runs asked about: %s", script)
	return nil
}

func (w *pruneWorld) list() (core.ExecResult, error) {
	if w.in.LsStdout == nil {
		return core.ExecResult{}, errWorld
	}
	times, stat := "", 0
	if w.in.StatStdout != nil {
		times, stat = strings.ReplaceAll(*w.in.StatStdout, " "+w.format.Dir, " ."), 1
	}
	answer := fmt.Sprintf("sandkeeper-journal/1 names=%d times=%d stat=%d\n%s%s\nsandkeeper-journal/1 end\n",
		len(*w.in.LsStdout), len(times), stat, *w.in.LsStdout, times)
	return core.ExecResult{Stdout: []byte(answer)}, nil
}

func (w *pruneWorld) Standing(_ context.Context, run core.RunID) (core.PruneStanding, error) {
	w.asked = append(w.asked, string(run))
	status, known := w.in.Runs[string(run)]
	switch {
	case status == "throws":
		return core.PruneTerminal, errWorld
	case !known:
		return core.PruneUnknown, nil
	case status == "completed" || status == "failed" || status == "aborted":
		return core.PruneTerminal, nil
	}
	return core.PruneLive, nil
}

func TestPruneVectors(t *testing.T) {
	forEachVector(t, "prune", func(t *testing.T, c vectorCase) error {
		type kept struct {
			RunID  string
			Names  []string
			Reason string
		}
		type failure struct{ Stage, RunID string }
		type result struct {
			Listed, RunIDs int
			Deleted        []string
			Kept           []kept
			AgeGate        string
			Failures       []failure
			RemoveAttempts []string
			StoreLookups   []string
		}
		w := &pruneWorld{t: t, format: originalFormat(t, c)}
		want := result{}
		c.decode(t, &w.in, &want)
		pruner := core.JournalPruner{Dir: &core.JournalProber{Exec: w, Format: w.format}, Format: w.format, Store: w}
		pruner.Policy.MaxDeletes = w.in.MaxDeletes
		if w.in.OrphanTTLMs != nil {
			pruner.Policy.OrphanAge = new(time.Duration(*w.in.OrphanTTLMs) * time.Millisecond)
		}
		report := pruner.Prune(t.Context(), core.ExecTarget{}, w.in.Now)
		got := result{
			Listed: report.Listed, RunIDs: report.Runs, AgeGate: "unavailable", Deleted: []string{}, Kept: []kept{},
			Failures: []failure{}, RemoveAttempts: append([]string{}, w.tried...), StoreLookups: append([]string{}, w.asked...),
		}
		if report.AgeGate {
			got.AgeGate = "listed"
		}
		for _, run := range report.Deleted {
			got.Deleted = append(got.Deleted, string(run))
		}
		for _, k := range report.Kept {
			got.Kept = append(got.Kept, kept{string(k.Run), k.Names, string(k.Reason)})
		}
		for _, f := range report.Failures {
			got.Failures = append(got.Failures, failure{f.Stage, string(f.Run)})
		}
		return differ(got, want)
	})
}

// readWorld is a journal that arrives as a case says.
type readWorld struct {
	poll    bool
	steps   []readStep
	stderr  *string
	hang    bool
	cutAt   int // poll whose frame is cut short
	polls   int
	buffer  []byte
	abort   context.CancelFunc
	effects []string
}

type readStep struct {
	Text   *string
	Base64 []byte
	Wait   int64
	Abort  bool
}

func (w *readWorld) Read(ctx context.Context, from int64) ([]byte, error) {
	w.polls++
	if w.cutAt != 0 && w.polls >= w.cutAt {
		return nil, core.ErrFrameTruncated
	}
	for len(w.steps) > 0 {
		step := w.steps[0]
		w.steps = w.steps[1:]
		switch {
		case step.Abort:
			w.abort()
			return nil, ctx.Err()
		case step.Wait > 0:
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Duration(step.Wait) * time.Millisecond):
			}
			continue
		case step.Text != nil:
			w.buffer = append(w.buffer, *step.Text...)
		default:
			w.buffer = append(w.buffer, step.Base64...)
		}
		return w.buffer[from:], nil
	}
	switch {
	case w.poll:
		return w.buffer[from:], nil
	case w.hang:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, io.EOF
}

func (w *readWorld) Stderr(context.Context) ([]byte, error) {
	w.effects = append(w.effects, "read stderr")
	switch {
	case w.stderr == nil:
		return nil, nil
	case *w.stderr == "throws", *w.stderr == "corrupt":
		return nil, errWorld
	}
	return []byte(*w.stderr), nil
}

// stderrIsLong tells stderr whose end differs from its beginning, which the
// original shows.
func stderrIsLong(c vectorCase) bool {
	var in struct{ Stderr string }
	if json.Unmarshal(c.Input, &in) != nil {
		return false
	}
	text := strings.TrimSpace(in.Stderr)
	return len(text) > core.MaxExitMessage && !strings.HasPrefix(text, core.ExitMessage([]byte(text)))
}

// What removes the files, and the original's follower process, are no part of our
// reader: journals go when a sandbox becomes idle. Everything else is compared.
func TestJournalReadVectors(t *testing.T) {
	forEachVector(t, "journal_read", func(t *testing.T, c vectorCase) (difference error) {
		synctest.Test(t, func(t *testing.T) { difference = readVector(t, c) })
		return difference
	})
}

type readFailure struct {
	Kind   string
	Code   int
	Stderr string
}

type readResult struct {
	Events   []any
	NonJSON  []string
	Finished bool
	Error    *readFailure
	Effects  []string
}

func readVector(t *testing.T, c vectorCase) error {
	var in struct {
		RunID                wtf8
		Strategy             string
		FirstByteMs          int64
		Steps                []readStep
		Stderr               *string
		Hang                 bool
		FrameTruncatedAtPoll int
	}
	var want readResult
	c.decode(t, &in, &want)
	want.Effects = slices.DeleteFunc(want.Effects, func(e string) bool { return e == "remove" })
	ctx, abort := context.WithCancel(t.Context())
	defer abort()
	w := &readWorld{
		poll: in.Strategy == "poll", steps: in.Steps, stderr: in.Stderr, hang: in.Hang, cutAt: in.FrameTruncatedAtPoll,
		abort: abort, effects: []string{},
	}
	f := originalFormat(t, c)
	reader := core.JournalReader{
		Format: f, Nonce: f.DerivedNonce(core.RunID(in.RunID)), Source: w,
		Poll: 5 * time.Millisecond, FirstByte: 10 * time.Second,
	}
	if in.FirstByteMs > 0 {
		reader.FirstByte = time.Duration(in.FirstByteMs) * time.Millisecond
	}
	got := readResult{Events: []any{}, NonJSON: []string{}}
	got.Finished, got.Error = endOfRead(reader.Read(ctx, 0, got.take))
	got.Effects = w.effects
	return differ(got, want)
}

func (r *readResult) take(line core.JournalLine, isJSON bool) error {
	if !isJSON {
		r.NonJSON = append(r.NonJSON, strings.TrimSpace(string(line.Text)))
		return nil
	}
	var event any
	err := json.Unmarshal(line.Text, &event)
	r.Events = append(r.Events, event)
	return err
}

// endOfRead words how a reader ended; an abort is a quiet end.
func endOfRead(err error) (finished bool, failure *readFailure) {
	if exit, ok := errors.AsType[*core.JournalExitError](err); ok {
		return false, &readFailure{"exit", exit.Exit, exit.Message}
	}
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return true, nil
	case errors.Is(err, core.ErrJournalStalled):
		return false, &readFailure{Kind: "stalled"}
	case errors.Is(err, core.ErrNoSentinel):
		return false, &readFailure{Kind: "no-sentinel"}
	}
	return false, &readFailure{Kind: "other"}
}

// What the original's command and ours do to equal directories is compared, not
// their texts: ours check more, and their channel needs no base64.
func TestCommandsVectors(t *testing.T) {
	forEachVector(t, "commands", func(t *testing.T, c vectorCase) error {
		w := newCommandWorld(t, c)
		if !w.representable {
			// A position that is no whole number, or too large for one, has no Go value.
			return differ(true, w.want.Error)
		}
		ours, err := w.script()
		if w.want.Error || err != nil {
			if w.in.Builder == "journaled" && strings.TrimSpace(w.in.Command) == "" && err != nil {
				// The original's text is no program: nothing may happen, and nothing does.
				return differ(w.left(w.prepare("ours")), w.originalEffect())
			}
			return differ(err != nil, w.want.Error)
		}
		return differ(w.effect(ours), w.originalEffect())
	})
}

type commandWorld struct {
	t             *testing.T
	format        core.JournalFormat
	id            core.RunID
	representable bool
	in            struct {
		Builder  string
		RunID    wtf8
		Dir      *string
		Command  string
		FromByte json.Number
		MaxBytes *json.Number
	}
	want struct {
		Command string
		Error   bool
	}
	from, max int64
	root      string
	inside    string // the original's directory below the root
}

// harmless takes the teeth out of a hostile directory name, in case a quote fails.
func harmless(text string) string { return strings.ReplaceAll(text, "rm -rf", "echo") }

func newCommandWorld(t *testing.T, c vectorCase) *commandWorld {
	w := &commandWorld{t: t, format: originalFormat(t, c), root: t.TempDir()}
	c.decode(t, &w.in, &w.want)
	w.id = core.RunID(w.in.RunID)
	if w.in.Dir != nil {
		w.format.Dir = harmless(*w.in.Dir)
	}
	w.inside = strings.TrimSuffix(w.format.Dir, "/")
	var err, err2 error
	w.max = core.JournalTail
	if w.in.FromByte != "" {
		w.from, err = w.in.FromByte.Int64()
	}
	if w.in.MaxBytes != nil {
		w.max, err2 = w.in.MaxBytes.Int64()
	}
	w.representable = err == nil && err2 == nil
	return w
}

// script composes ours; listings are taken apart by the caller.
func (w *commandWorld) script() (string, error) {
	f := w.format
	switch w.in.Builder {
	case "journaled":
		return f.StartScript(core.JournalStart{Run: w.id, Nonce: f.DerivedNonce(w.id), Shell: w.in.Command})
	case "follow":
		return f.FollowScript(w.id, w.from, 20*time.Second)
	case "read":
		return f.PageScript(w.id, w.from, 0)
	case "probe":
		return f.TailScript(w.id, w.max)
	case "stderr":
		return f.StderrScript(w.id, w.max)
	case "exists":
		return f.ExistsScript(w.id)
	case "cleanup":
		return f.RemoveScript([]core.RunID{w.id})
	case "list", "mtimeList":
		return f.ListScript(), nil
	}
	w.t.Fatalf("builder %q: unknown", w.in.Builder)
	return "", nil
}

const (
	commandJournal = "one\ntwo\nthree 日本\nfour\n"
	commandStderr  = "some\ndiagnostics\n"
)

// prepare makes a directory with journals, and returns it.
func (w *commandWorld) prepare(name string) string {
	w.t.Helper()
	root := filepath.Join(w.root, name)
	dir := root + w.inside
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	files := map[string]string{"other.ndjson": "x\n", "other.err": "y\n"}
	if w.id != "" && w.in.Builder != "journaled" {
		token, err := w.format.Token(w.id)
		if err != nil {
			w.t.Fatal(err)
		}
		files[token+w.format.Ext], files[token+w.format.ErrExt] = commandJournal, commandStderr
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
		at := time.Unix(1_700_000_000+int64(len(name)), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			w.t.Fatal(err)
		}
	}
	return dir
}

// effect runs ours in a fresh directory and words what it gave and left.
func (w *commandWorld) effect(script string) string {
	dir := w.prepare("ours")
	b := newBox(w.t, shells(w.t)[0])
	b.dir, b.runs = dir, w.format
	b.env = slices.DeleteFunc(b.env, func(v string) bool { return strings.HasPrefix(v, core.JournalDirVariable) })
	b.env = append(b.env, core.JournalDirVariable+"="+dir)
	switch w.in.Builder {
	case "journaled":
		b.startWith(core.JournalStart{Run: w.id, Nonce: w.format.DerivedNonce(w.id), Shell: w.in.Command}, "").wait()
		return w.left(dir)
	case "follow":
		return w.follow(b, script) + w.left(dir)
	case "read":
		page, err := core.ParsePage(b.run(script, "", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		return string(page.Bytes[min(int64(len(page.Bytes)), w.from-page.From):]) + w.left(dir)
	case "exists":
		return fmt.Sprint(b.command(w.t.Context(), script, nil).Run() == nil) + w.left(dir)
	case "cleanup":
		gone, err := core.ParseRemove(b.run(script, "", nil), 1)
		return fmt.Sprint(err == nil && gone[0]) + w.left(dir)
	case "list", "mtimeList":
		listing, err := core.ParseListing(b.run(script, "", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		return w.listed(listing.Names, listing.Times)
	}
	return string(b.run(script, "", nil)) + w.left(dir)
}

// originalEffect does the same with the original's text, in its own directory.
func (w *commandWorld) originalEffect() string {
	dir := w.prepare("original")
	quoted := func(path string) string { return strings.ReplaceAll(path, "'", `'\''`) }
	command := strings.ReplaceAll(harmless(w.want.Command), "'"+quoted(w.inside), "'"+quoted(dir))
	b := newBox(w.t, shells(w.t)[0])
	cmd := b.command(w.t.Context(), command, nil)
	switch w.in.Builder {
	case "journaled":
		cmd.Run() // its status is the agent's
		return w.left(dir)
	case "follow":
		return w.follow(b, command) + w.left(dir)
	case "exists", "cleanup":
		return fmt.Sprint(cmd.Run() == nil) + w.left(dir)
	}
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("run the original's command: %v", err)
	}
	switch w.in.Builder {
	case "list":
		return w.listed(core.ParseJournalNames(string(out)), core.JournalTimes{})
	case "mtimeList":
		return w.listed(nil, core.ParseJournalTimes(string(out), dir))
	}
	decoded, err := decodeFrame([]string{string(out)})
	if err != nil {
		w.t.Fatal(err)
	}
	return string(decoded) + w.left(dir)
}

// listed words the part of a listing that the case is about.
func (w *commandWorld) listed(names []string, times core.JournalTimes) string {
	if w.in.Builder == "list" {
		return fmt.Sprint(names)
	}
	slices.SortFunc(times.Of, func(a, b core.JournalTime) int { return strings.Compare(a.Name, b.Name) })
	return fmt.Sprint(times)
}

// follow reads what a follower gives at first, and kills it.
func (w *commandWorld) follow(b *box, script string) string {
	cmd := b.command(w.t.Context(), "exec 2>/dev/null; "+script, nil)
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	data := make([]byte, max(0, int64(len(commandJournal))-w.from))
	if _, err := io.ReadFull(out, data); err != nil {
		w.t.Fatal(err)
	}
	killGroup(cmd)
	cmd.Wait()
	return string(data)
}

// left words the regular files of dir, the journal without the wrapper's newline.
func (w *commandWorld) left(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		text := readFile(w.t, filepath.Join(dir, entry.Name()))
		if w.in.Builder == "journaled" && strings.HasPrefix(dir, filepath.Join(w.root, "ours")) {
			text = plain(w.format, w.format.DerivedNonce(w.id), []byte(text))
		}
		fmt.Fprintf(&b, "\n%s: %q", entry.Name(), diagnosticsApart(entry.Name(), text))
	}
	return b.String()
}

// diagnosticsApart leaves out what shells word each in its own way.
func diagnosticsApart(name, text string) string {
	if strings.HasSuffix(name, ".err") && text != commandStderr && text != "y\n" {
		return "diagnostics"
	}
	return text
}
