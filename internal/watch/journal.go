package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// journal is a side journal: whole lines, up to so many bytes.
type journal struct {
	file *os.File
	left int64
	full bool
}

// lastLine is kept back for the line that says that the journal is full.
const lastLine = 256

func openJournal(name string, max int64) (*journal, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("want a regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open side journal %s: %w", name, err)
	}
	return &journal{file: f, left: max - info.Size() - lastLine}, nil
}

// append writes a line; one that has no room is left out, and that is said once. A diff
// goes before its line does.
func (j *journal) append(e Event) error {
	if j.full {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if int64(len(line)) >= j.left && e.Diff != "" {
		e.Diff, e.Why = "", "journal-full"
		if line, err = json.Marshal(e); err != nil {
			return err
		}
	}
	if int64(len(line)) >= j.left {
		j.full = true
		if line, err = json.Marshal(Event{At: time.Now().UnixMilli(), Kind: Lost, Path: ".", Why: "journal-full"}); err != nil {
			return err
		}
	}
	n, err := j.file.Write(append(line, '\n'))
	j.left -= int64(n)
	return err
}

// Close puts the journal on the disk.
func (j *journal) Close() error { return errors.Join(j.file.Sync(), j.file.Close()) }
