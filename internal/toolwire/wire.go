// Package toolwire is what a sandbox and the tools function say to one another, and the
// sandbox's side of it. Its rule: what a run may do is read from its bearer alone, every
// refusal is one clear line with a code, and a call of a tool is never made twice.
package toolwire

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// The paths of the function's URL. Each takes one POST of JSON with the run's bearer,
// and answers with JSON.
const (
	PathCall  = "/"
	PathEnded = "/ended"
	PathSpool = "/spool"
)

// Limits of what a sandbox may ask for.
const (
	// MaxBody is the longest body of a request, bytes.
	MaxBody = 1_000_000
	// MaxResult is the longest result of a tool, bytes of JSON: with all that may have to
	// be escaped on its way it stays below the 6 MB that a function may answer.
	MaxResult = 1_000_000
	// MaxName is the longest name of a tool, bytes.
	MaxName = 128
	// MaxPieces is how many pieces one request names.
	MaxPieces = 32
	// MaxPiece is the longest piece of a journal, bytes.
	MaxPiece = 1 << 20
	// MaxSpool is how many bytes of its journal one run may spool, and MaxSpoolPieces in
	// how many pieces.
	MaxSpool       = 1 << 30
	MaxSpoolPieces = 50_000
	// MaxPosition is the highest position in a journal that a key can name: 16 digits.
	MaxPosition = 9_999_999_999_999_999
)

// The times of a call, each longer than the one before it.
const (
	// DefaultTool is how long a tool may take that has no limit of its own, MaxTool the
	// highest such limit.
	DefaultTool = time.Minute
	MaxTool     = 5 * time.Minute
	// FunctionTimeout is the function's own: a tool's, and what comes before and after.
	FunctionTimeout = MaxTool + 20*time.Second
	// CallTimeout is how long a sandbox waits for an answer.
	CallTimeout = FunctionTimeout + 10*time.Second
)

// Tool is what a sandbox knows of a tool.
type Tool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// InputSchema is a JSON schema of type object; empty: any object.
	InputSchema json.RawMessage `json:"inputSchema,omitempty"`
}

// CallRequest asks for one call of a tool of the run's list.
type CallRequest struct {
	Name string `json:"name"`
	// Args is an object; absent or null is an empty one.
	Args json.RawMessage `json:"args,omitempty"`
}

// CallAnswer has what the tool's function returned.
type CallAnswer struct {
	Result json.RawMessage `json:"result"`
}

// EndedRequest says that the run's agent has ended. It makes somebody look, and proves
// nothing.
type EndedRequest struct {
	ExitCode int `json:"exitCode"`
}

// EndedAnswer says that it was heard, now or before.
type EndedAnswer struct{}

// SpoolRequest asks for leave to store pieces of the run's journal.
type SpoolRequest struct {
	Pieces []Piece `json:"pieces"`
}

// Piece is a piece of a journal.
type Piece struct {
	From   int64  `json:"from"` // position of its first byte
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // over its bytes, 64 lower-case hex digits
}

// SpoolAnswer has a grant for each piece, in the same order.
type SpoolAnswer struct {
	Grants []Grant `json:"grants"`
	// Watched says that a host has the run now: somebody waits for what comes next.
	Watched bool `json:"watched"`
}

// Grant is leave for one PUT at S3. All of Headers must be sent, and the body must have
// the size and the hash that were asked for. S3 answers 412 where the piece is stored
// already, which is as good.
type Grant struct {
	From    int64             `json:"from"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Until   int64             `json:"until"` // milliseconds since the Unix epoch
}

// The codes of refusals.
const (
	CodeBadRequest  = "bad-request"  // 400: no JSON, no name, not of the documented form
	CodeBearer      = "bearer"       // 401: no bearer, not one of a run, or of a run that has ended
	CodeNoSuchTool  = "no-such-tool" // 404: the run's list does not have it
	CodeNoSuchPath  = "no-such-path" // 404
	CodeMethod      = "bad-method"   // 405
	CodeCancelled   = "cancelled"    // 409: the run is to end
	CodeTooLarge    = "too-large"    // 413: the request, or the tool's result
	CodeSpoolFull   = "spool-full"   // 413: all that the run may spool is spooled
	CodeToolFailed  = "tool-failed"  // 502: the tool's function failed, or could not be reached
	CodeToolTimeout = "tool-timeout" // 504: the tool took longer than it may
	CodeUnavailable = "unavailable"  // 503 and every other fault that may pass by itself
)

// ErrorAnswer is the body of every answer that is no success.
type ErrorAnswer struct {
	Error Error `json:"error"`
}

// Error is one clear line with a code to branch on.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Status is the HTTP status that it came with; zero where there was no answer.
	Status int `json:"-"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Check refuses a list that is empty or too long, and pieces that no key can name.
func (q SpoolRequest) Check() error {
	if n := len(q.Pieces); n == 0 || n > MaxPieces {
		return fmt.Errorf("pieces: want 1 to %d, got %d", MaxPieces, n)
	}
	for i, p := range q.Pieces {
		if err := p.check(); err != nil {
			return fmt.Errorf("pieces[%d]: %w", i, err)
		}
	}
	return nil
}

func (p Piece) check() error {
	switch sum, err := hex.DecodeString(p.SHA256); {
	case err != nil || len(sum) != 32 || hex.EncodeToString(sum) != p.SHA256:
		return fmt.Errorf("sha256: want 64 lower-case hex digits, got %.80q", p.SHA256)
	case p.Size < 1 || p.Size > MaxPiece:
		return fmt.Errorf("size: want 1 to %d bytes, got %d", MaxPiece, p.Size)
	case p.From < 0 || p.From > MaxPosition-p.Size:
		return fmt.Errorf("from: want a position from 0 on whose end has at most 16 digits, got %d", p.From)
	}
	return nil
}
