package core

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// FollowScript composes the script that streams run's journal from the byte
// position from on, raw and as it grows, until it is killed or limit, whole
// seconds, is over. Exec of a script that streams is the caller's matter.
func (f JournalFormat) FollowScript(run RunID, from int64, limit time.Duration) (string, error) {
	vars, err := f.shellVars(run, "")
	if err != nil {
		return "", err
	}
	if err := checkPosition("follow begin", from); err != nil {
		return "", err
	}
	if limit < time.Second {
		return "", fmt.Errorf("compose follow script for run %s: limit %s: want at least 1s", run, limit)
	}
	// tail ends at once on a file that is not there yet.
	body := vars + shellAnswer + `umask 077
mkdir -p "$d" 2>/dev/null
kind "$j"
case $k in missing|regular) ;; *) exit 1 ;; esac
: 2>/dev/null >>"$j"
exec tail -c ` + "+" + strconv.FormatInt(from+1, 10) + ` -f "$j" 2>/dev/null
`
	return boundedScript(int(limit.Seconds()), body), nil
}

// TailScript composes the script whose stdout is the end of run's journal, at most
// max bytes, raw; nothing if there is no regular file.
func (f JournalFormat) TailScript(run RunID, max int64) (string, error) {
	return f.tailScript(run, "$j", max)
}

// StderrScript composes the script whose stdout is the end of run's sidecar, at
// most max bytes, raw; nothing if there is no regular file.
func (f JournalFormat) StderrScript(run RunID, max int64) (string, error) {
	return f.tailScript(run, "$e", max)
}

func (f JournalFormat) tailScript(run RunID, file string, max int64) (string, error) {
	vars, err := f.shellVars(run, "")
	if err != nil {
		return "", err
	}
	if max < 1 || max > maxPosition {
		return "", fmt.Errorf("compose tail script for run %s: %d bytes: want at least 1", run, max)
	}
	body := vars + shellAnswer + fmt.Sprintf(`kind "%s"
[ $k = regular ] || exit 0
tail -c %d "%s" 2>/dev/null
`, file, max, file)
	return boundedScript(20, body), nil
}

// ExistsScript composes the script that exits 0 if run has a journal that is a
// regular file, and 1 if not.
func (f JournalFormat) ExistsScript(run RunID) (string, error) {
	vars, err := f.shellVars(run, "")
	if err != nil {
		return "", err
	}
	return vars + `[ -f "$j" ] && [ ! -L "$j" ]` + "\n", nil
}

// RemoveScript composes the script that removes the journal and sidecars of each of
// runs, and what its start marker holds. The marker stays, empty: without it the same
// run could begin once more. Nothing but the encoder makes the paths. The answer is
// read by [ParseRemove].
func (f JournalFormat) RemoveScript(runs []RunID) (string, error) {
	tokens := make([]string, len(runs))
	for i, run := range runs {
		var err error
		if tokens[i], err = f.Token(run); err != nil {
			return "", err
		}
	}
	return boundedScript(30, f.shellDir()+shellAnswer+"gone=\nfor t in "+quoteWords(tokens)+"; do\n"+f.shellFiles()+
		`if rm -f "$j" "$e" "$g" 2>/dev/null && rm -rf "$m"/* 2>/dev/null; then gone=${gone}1; else gone=${gone}0; fi
done
answer "gone=$gone"
finish
`), nil
}

// ParseRemove reads the stdout of a remove script over so many runs: for each,
// whether its files are gone.
func ParseRemove(out []byte, runs int) ([]bool, error) {
	a, err := parseAnswer("remove", out)
	if err != nil {
		return nil, err
	}
	flags := a.fields["gone"]
	if len(flags) != runs || strings.Trim(flags, "01") != "" {
		return nil, incomplete("remove")
	}
	gone := make([]bool, runs)
	for i := range gone {
		gone[i] = flags[i] == '1'
	}
	return gone, a.done()
}

// ListScript composes the script that lists the journal directory, names and
// times of change. The answer is read by [ParseListing].
func (f JournalFormat) ListScript() string {
	return boundedScript(20, f.shellDir()+shellLocale+shellAnswer+`names=$(ls -1A "$d" 2>/dev/null; echo x)
times=$(cd "$d" 2>/dev/null && stat -c '%Y %n' . ./* ./.[!.]* ./..?* 2>/dev/null; echo x)
names=${names%x} times=${times%x}
stat=1
command -v stat >/dev/null 2>&1 || stat=0
answer "names=${#names} times=${#times} stat=$stat"
printf '%s%s' "$names" "$times"
finish
`)
}

// ParseListing reads the stdout of a list script. An answer that is not whole is a
// *[JournalError].
func ParseListing(out []byte) (JournalListing, error) {
	a, err := parseAnswer("list", out)
	if err != nil {
		return JournalListing{}, err
	}
	names, err := a.section("names")
	if err != nil {
		return JournalListing{}, err
	}
	times, err := a.section("times")
	if err != nil {
		return JournalListing{}, err
	}
	listing := JournalListing{Names: ParseJournalNames(string(names)), Times: ParseJournalTimes(string(times), ".")}
	if a.fields["stat"] != "1" {
		listing.TimesErr = &JournalError{Op: "list", Healing: Configuration, Reason: "no-stat"}
	}
	return listing, a.done()
}

// JournalListing is what a journal directory held.
type JournalListing struct {
	Names    []string
	Times    JournalTimes
	TimesErr error `json:"-"` // why the times could not be asked for, where that is known
}

// JournalTimes are the times of change of a directory's entries. Known is false,
// and Of empty, if the directory itself was not reported: not being able to look
// is not the same as nothing being there.
type JournalTimes struct {
	Known bool
	Of    []JournalTime
}

// JournalTime is when an entry changed last.
type JournalTime struct {
	Name string
	At   Millis
}

// ParseJournalNames reads a listing of one name a line.
func ParseJournalNames(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if name := strings.TrimSpace(line); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// ParseJournalTimes reads lines of seconds, a space and a path. The line of dir
// itself is the witness without which nothing is known. Other directories' entries
// and everything that is no such line are passed over.
func ParseJournalTimes(text, dir string) JournalTimes {
	dir = strings.TrimSuffix(dir, "/")
	var times JournalTimes
	for line := range strings.Lines(text) {
		at, path, err := cutTime(line)
		if err != nil {
			continue
		}
		if path == dir {
			times.Known = true
			continue
		}
		name, inside := strings.CutPrefix(path, dir+"/")
		if inside && name != "" && !strings.Contains(name, "/") {
			times.Of = append(times.Of, JournalTime{Name: name, At: at})
		}
	}
	if !times.Known {
		return JournalTimes{}
	}
	return times
}

func cutTime(line string) (Millis, string, error) {
	digits, path, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok || strings.Trim(digits, "0123456789") != "" {
		return 0, "", errors.New("no time")
	}
	seconds, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || seconds > maxPosition/1000 {
		return 0, "", errors.New("no time")
	}
	return Millis(seconds * 1000), path, nil
}
