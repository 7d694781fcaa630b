package wrapper

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	probeLimit = 20 * time.Second
	startLimit = 40 * time.Second
)

// bound ends the process after so long: a client that went away ends nothing.
func bound(limit time.Duration) func() {
	timer := time.AfterFunc(limit, func() { os.Exit(137) })
	return func() { timer.Stop() }
}

// Probe answers the query on in as the probe script does, framed, on out, and returns
// the exit status.
func Probe(in io.Reader, out io.Writer) int {
	defer bound(probeLimit)()
	query, err := readLine[Query](bufio.NewReaderSize(in, maxLine))
	if err == nil {
		// What no probe script is composed for is no query.
		_, err = core.DefaultJournal.ProbeScript(query.Run, query.Nonce, query.LogEnd)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return 2
	}
	answer, err := probe(query)
	return respond(out, answer, err)
}

// section is a part of a file.
type section struct {
	file       *os.File
	from, size int64
}

func (s section) read() []byte {
	if s.file == nil || s.size <= 0 {
		return nil
	}
	data := make([]byte, s.size)
	n, _ := s.file.ReadAt(data, s.from) // fewer bytes than the header says are no answer
	return data[:n]
}

func probe(query Query) ([]byte, error) {
	r, err := openRun(query.Run, query.Nonce)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(r.Dir); err == nil && (!info.IsDir() || unix.Access(r.Dir, unix.X_OK) != nil) {
		return nil, misconfigured("directory-unreadable")
	}
	journal, info, err := lookAt(r.Journal)
	if err != nil {
		return nil, err
	}
	var size, inode, newest int64
	if journal != nil {
		defer journal.Close()
		size, inode, newest = facts(info)
	}
	tail := tailOf(r, journal, size)
	shown := tail.read()
	sidecar, changed := stderrOf(r, journal != nil, bytes.Contains(shown, []byte(r.nonce)))
	if sidecar.file != nil {
		defer sidecar.file.Close()
	}
	said, rest := sidecar.read(), restOf(journal, size, query.LogEnd)
	marker, _ := os.Stat(r.Marker)
	header := []string{
		fmt.Sprint("present=", digit(journal != nil)), fmt.Sprint("size=", size), fmt.Sprint("inode=", inode),
		fmt.Sprint("changed=", max(newest, changed)), fmt.Sprint("marker=", digit(marker != nil && marker.IsDir())),
		"wrapper=" + wrapperWord(r.wrapperOf()), fmt.Sprint("from=", tail.from), fmt.Sprint("tail=", tail.size), fmt.Sprint("stderr=", sidecar.size),
		fmt.Sprint("has=", digit(rest.file != nil || size-query.LogEnd <= core.JournalRest)), fmt.Sprint("rfrom=", rest.from), fmt.Sprint("rest=", rest.size),
	}
	return core.AppendJournalAnswer(nil, header, shown, said, rest.read()), nil
}

func digit(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// lookAt opens the journal; nil where there is none.
func lookAt(name string) (*os.File, fs.FileInfo, error) {
	switch kind := kindOf(name); kind {
	case kindMissing:
		return nil, nil, nil
	case kindRegular:
	default:
		return nil, nil, misconfigured("journal-" + kind)
	}
	f, info, err := openRegular(name, os.O_RDONLY)
	if err != nil {
		return nil, nil, refuse("stat-failed")
	}
	return f, info, nil
}

func facts(info fs.FileInfo) (size, inode, changed int64) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = int64(stat.Ino)
	}
	return info.Size(), inode, info.ModTime().Unix()
}

// tailOf is the end of the journal, or the place of the sentinel: the position that the
// wrapper left is where it was about to write it, and there it is found even if
// something that the agent left behind wrote on.
func tailOf(r run, journal *os.File, size int64) section {
	from := max(size-core.JournalTail, 0)
	if end, there := number(r.in("end")); there && end < size {
		from = end
	}
	return section{journal, from, min(size-from, core.JournalTail)}
}

// stderrOf is the end of the sidecar, which is shown only with a sentinel, and when it
// changed.
func stderrOf(r run, present, sealed bool) (section, int64) {
	if !present || kindOf(r.Stderr) != kindRegular {
		return section{}, 0
	}
	f, info, err := openRegular(r.Stderr, os.O_RDONLY)
	if err != nil {
		return section{}, 0
	}
	size, _, changed := facts(info)
	if !sealed {
		f.Close()
		return section{}, changed
	}
	from := max(size-core.JournalTail, 0)
	return section{f, from, size - from}, changed
}

// restOf is what of the journal the log does not have, if it is not too much.
func restOf(journal *os.File, size, logEnd int64) section {
	if size-logEnd > core.JournalRest {
		return section{}
	}
	from := max(logEnd-core.JournalOverlap, 0)
	return section{journal, from, max(size-from, 0)}
}
