// Package transfer is what an agent in a sandbox and the checkpoint function say to
// one another, and the agent's side of it. Its rule: bytes of a workspace go between
// the sandbox and S3 alone, by grants that are good for one object; what passes the
// function names packs by fence and hash, never by key, and an agent needs nothing of
// AWS but the URLs that it is given.
package transfer

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// The paths of the function's URL. Each takes one POST of JSON with the capture's
// token as bearer, and answers with JSON.
const (
	PathGrant  = "/grant"
	PathHas    = "/has"
	PathParent = "/parent"
	PathFetch  = "/fetch"
	PathRenew  = "/renew"
	PathFail   = "/fail"
	PathCommit = "/commit"
)

// Limits of one request and of one grant.
const (
	// MaxPacks is how many packs one request names: the answer, with a URL of up to
	// 3 KiB for each, stays far below what a function may answer.
	MaxPacks = 256
	// MaxRoot is the longest root of a checkpoint, bytes.
	MaxRoot = 4 << 20
	// MaxBody is the longest body of a request or an answer, bytes: a function takes
	// and gives 6 MB, and a root goes as base64.
	MaxBody = 5_900_000
	// MaxPack is the longest stored pack or layer, bytes.
	MaxPack = 256 << 20
)

// Pack names an immutable object of a thread: a pack or a layer.
type Pack struct {
	// Fence is the writer's under which it was stored; zero: the current one.
	Fence int64 `json:"fence,omitempty"`
	// SHA256 is over the stored bytes, 64 lower-case hex digits.
	SHA256 string `json:"sha256"`
	// Size is that of the stored bytes.
	Size int64 `json:"size,omitempty"`
	// Owner is the thread that stored it; empty: the own one.
	Owner string `json:"owner,omitempty"`
}

// GrantRequest asks for leave to store packs under the current fence. It renews the
// writer's lease.
type GrantRequest struct {
	Packs []Pack `json:"packs"`
}

// GrantAnswer has a grant for each pack, in the same order.
type GrantAnswer struct {
	Grants []Grant `json:"grants"`
	Until  int64   `json:"until"` // of the lease, milliseconds since the Unix epoch
}

// Grant is leave for one request at S3. For a PUT all of Headers must be sent, and the
// body must have the size and the hash that were asked for.
type Grant struct {
	SHA256  string            `json:"sha256,omitempty"`
	Fence   int64             `json:"fence,omitempty"`
	Present bool              `json:"present,omitempty"` // stored already: URL is empty
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// HasRequest asks which packs are stored.
type HasRequest struct {
	Packs []Pack `json:"packs"`
}

// HasAnswer answers for each pack, in the same order.
type HasAnswer struct {
	Present []bool `json:"present"`
}

// ParentRequest asks for the root that the checkpoint to be made goes out from, or
// that is to be restored.
type ParentRequest struct{}

// ParentAnswer has that root; nil if the thread has none.
type ParentAnswer struct {
	Root []byte `json:"root"`
}

// FetchRequest asks for leave to read packs of that root.
type FetchRequest struct {
	Packs []Pack `json:"packs"`
}

// FetchAnswer has a grant for each pack, in the same order.
type FetchAnswer struct {
	Grants []Grant `json:"grants"`
}

// RenewRequest says how far the agent is, and that it lives.
type RenewRequest struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// RenewAnswer says until when the lease holds, milliseconds since the Unix epoch.
type RenewAnswer struct {
	Until int64 `json:"until"`
}

// FailRequest ends the step: it cannot be done.
type FailRequest struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// FailAnswer says that the failure is recorded.
type FailAnswer struct{}

// CommitRequest hands in the root of a capture. The same root once more is success.
// Of a restore or a verification it says that it is done; Root is then empty.
type CommitRequest struct {
	Root []byte `json:"root,omitempty"`
}

// CommitAnswer names the checkpoint.
type CommitAnswer struct {
	ID string `json:"id"`
}

// ErrorAnswer is the body of every answer that is no success.
type ErrorAnswer struct {
	Error Error `json:"error"`
}

// Error is one clear line with a code to branch on.
type Error struct {
	Code    string `json:"code"` // short, lower-case with hyphens
	Message string `json:"message"`
	// Status is the HTTP status that it came with; zero where it came otherwise.
	Status int `json:"-"`
}

func (e *Error) Error() string { return fmt.Sprintf("checkpoint function: %s: %s", e.Code, e.Message) }

// CodeUnavailable stands for every fault that may pass by itself.
const CodeUnavailable = "unavailable"

// CheckPacks refuses a list that is empty or too long, and packs without a proper
// hash, fence or size. sized says that the sizes matter.
func CheckPacks(packs []Pack, sized bool) error {
	if n := len(packs); n == 0 || n > MaxPacks {
		return fmt.Errorf("packs: want 1 to %d, got %d", MaxPacks, n)
	}
	for i, p := range packs {
		if err := p.check(sized); err != nil {
			return fmt.Errorf("packs[%d]: %w", i, err)
		}
	}
	return nil
}

func (p Pack) check(sized bool) error {
	switch sum, err := hex.DecodeString(p.SHA256); {
	case err != nil || len(sum) != 32 || hex.EncodeToString(sum) != p.SHA256:
		return fmt.Errorf("sha256: want 64 lower-case hex digits, got %.80q", p.SHA256)
	case p.Fence < 0:
		return fmt.Errorf("fence: want 0 or more, got %d", p.Fence)
	case sized && (p.Size < 1 || p.Size > MaxPack):
		return fmt.Errorf("size: want 1 to %d bytes, got %d", MaxPack, p.Size)
	}
	return nil
}

// Job is what an agent is started for. It arrives on the agent's stdin, since it holds
// the token, which no command line, record or log may hold.
type Job struct {
	Kind JobKind `json:"kind"`
	ID   string  `json:"id"` // of the checkpoint
	// URL is where the function is dialled, without a path; Host, if not empty, is the
	// host that requests name instead of the URL's.
	URL   string `json:"url"`
	Host  string `json:"host,omitempty"`
	Token string `json:"token"`
	// Dir is the workspace, absolute; empty: where the sandbox says that it is.
	Dir string `json:"dir,omitempty"`
	// Policy is the JSON form of the manifest's policy; empty: the default one.
	Policy  json.RawMessage `json:"policy,omitempty"`
	Secrets []string        `json:"secrets,omitempty"` // names; values are found in the sandbox
	// DeadlineSeconds bounds the whole job; zero: the agent's default.
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
	// MaxBytes bounds what a capture reads; zero: none.
	MaxBytes   int64  `json:"maxBytes,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"` // to restore or verify, where it is not the head
	// Sample is how many packs a verification reads back; zero: all.
	Sample int `json:"sample,omitempty"`
	// Relay is a directory in which requests are left for whoever holds an exec session
	// with the sandbox, which then has no route to the URL; see [Files]. Empty: none.
	Relay string `json:"relay,omitempty"`
	// Plan is what a set-up does, and Values are the secrets that it is given, by name.
	// Neither is of use to the function: URL is then empty.
	Plan   json.RawMessage   `json:"plan,omitempty"`
	Values map[string]string `json:"values,omitempty"`
}

// JobKind is what an agent does.
type JobKind string

// The kinds of job.
const (
	JobCapture JobKind = "capture"
	JobRestore JobKind = "restore"
	JobVerify  JobKind = "verify"
	JobSetup   JobKind = "setup"
)
