package transfer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Files is the [Transport] of a sandbox without a route to the URL: each request is a
// file, which whoever holds an exec session with the sandbox takes to the function, and
// whose answer that one leaves beside it. Names are random; the directory is nobody
// else's. Requests and answers are one line each:
//
//	<name>.q: <path> <token> <base64 of the body>
//	<name>.a: <HTTP status> <base64 of the body>
type Files struct {
	Dir   string // made if it is not there
	Token string // the job's
}

const (
	// filesTimeout bounds one call: a session may have to be begun first.
	filesTimeout = 4 * time.Minute
	filesLook    = 100 * time.Millisecond
)

// Call leaves the request and waits for its answer.
func (f *Files) Call(ctx context.Context, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, filesTimeout)
	defer cancel()
	request, answer, err := f.leave(path, body)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	defer os.Remove(request)
	defer os.Remove(answer)
	tick := time.NewTicker(filesLook)
	defer tick.Stop()
	for {
		line, err := os.ReadFile(answer)
		if err == nil {
			return f.read(path, line)
		}
		if _, err := os.Lstat(f.Dir); err != nil {
			return nil, fmt.Errorf("call %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, unavailable(path, context.Cause(ctx))
		}
	}
}

// leave writes a request as a whole: under its name it appears complete.
func (f *Files) leave(path string, body []byte) (request, answer string, err error) {
	if err := os.Mkdir(f.Dir, 0o700); err != nil && !os.IsExist(err) {
		return "", "", err
	}
	if info, err := os.Lstat(f.Dir); err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return "", "", &fs.PathError{Op: "leave request", Path: f.Dir, Err: fs.ErrPermission}
	}
	name := filepath.Join(f.Dir, rand.Text())
	line := fmt.Appendf(nil, "%s %s %s\n", path, f.Token, base64.StdEncoding.EncodeToString(body))
	if err := os.WriteFile(name+".tmp", line, 0o600); err != nil {
		return "", "", err
	}
	return name + ".q", name + ".a", os.Rename(name+".tmp", name+".q")
}

// read takes an answer apart.
func (f *Files) read(path string, line []byte) ([]byte, error) {
	word, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
	status, err := strconv.Atoi(string(word))
	if err != nil {
		return nil, unavailable(path, err)
	}
	body, err := base64.StdEncoding.DecodeString(string(rest))
	switch {
	case err != nil:
		return nil, unavailable(path, err)
	case status != http.StatusOK:
		return nil, refusal(status, body)
	}
	return body, nil
}
