package core

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// PushRequest asks a sandbox's agent for a piece of a journal that is too large for the
// terminal's channel: to measure it, or, with a URL, to store it.
type PushRequest struct {
	RunKey
	Target ExecTarget        `json:"target"`
	Nonce  string            `json:"nonce"`
	From   int64             `json:"from"`
	Max    int64             `json:"max"`
	Size   int64             `json:"size,omitempty"`   // as measured
	SHA256 string            `json:"sha256,omitempty"` // as measured
	URL    string            `json:"url,omitempty"`    // to PUT exactly those bytes to; empty: measure
	Header map[string]string `json:"header,omitempty"`
}

// PushReply is a piece of a journal, without its bytes. It is cut as pages are, and
// never holds the sentinel.
type PushReply struct {
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`  // hex
	Overlap []byte `json:"overlap"` // the last bytes before it, at most JournalOverlap
	Stored  bool   `json:"stored"`
}

// JournalPusher has a sandbox's agent measure and store pieces of a journal.
type JournalPusher interface {
	// Push returns a *[JournalError] where the sandbox has no agent that can, or
	// refuses. A push may be repeated: the object is written once.
	Push(ctx context.Context, q PushRequest) (PushReply, error)
}

// Validate reports the first member that is not as expected.
func (q PushRequest) Validate() error {
	switch {
	case !journalNonce.MatchString(q.Nonce):
		return fmt.Errorf("push of run %s: nonce: want 16 to 128 hex digits", q.RunKey)
	case q.From < 0 || q.Max < 1:
		return fmt.Errorf("push of run %s: want a position from 0 on and a length from 1 on, got %d and %d", q.RunKey, q.From, q.Max)
	case q.URL != "" && (q.Size < 1 || q.Size > q.Max || len(q.SHA256) != 64):
		return fmt.Errorf("push of run %s: want what was measured, got %d bytes of %.80q", q.RunKey, q.Size, q.SHA256)
	}
	return nil
}

// pushSeconds bounds the script: an upload must fit into one call of the probe function.
const pushSeconds = 50

// PushScript composes the script that hands its own stdin, made by [PushInput], to the
// agent's push. The answer is read by [ParsePush].
func (f JournalFormat) PushScript() string {
	return boundedScript(pushSeconds, f.shellDir()+shellLocale+shellAnswer+findAgent+pushScript)
}

const pushScript = `case $a in /*) ;; *) refuse agent-missing configuration ;; esac
[ -f "$a" ] && [ -x "$a" ] || refuse agent-missing configuration
said=$("$a" push -dir "$d" 2>/dev/null)
code=$?
case $code in 2|126|127) refuse agent-unusable configuration ;; esac
[ $code -eq 0 ] || refuse agent-failed
case $said in *[!a-z0-9\ -]*) refuse agent-failed ;; esac
set -- $said
case "$#.${1-}" in
4.measured|4.stored) answer "result=$1 size=$2 digest=$3 overlap=$4"; finish ;;
2.refused) refuse "$2" ;;
3.refused) refuse "$2" "$3" ;;
esac
refuse agent-failed
`

// PushInput is the agent's stdin: what is asked, in one line. Its URL is a right to
// write, so it is in no command line.
func PushInput(q PushRequest) ([]byte, error) {
	line, err := json.Marshal(struct {
		Run    RunID             `json:"run"`
		Nonce  string            `json:"nonce"`
		From   int64             `json:"from"`
		Max    int64             `json:"max"`
		Size   int64             `json:"size,omitempty"`
		SHA256 string            `json:"sha256,omitempty"`
		URL    string            `json:"url,omitempty"`
		Header map[string]string `json:"headers,omitempty"`
	}{q.Run, q.Nonce, q.From, q.Max, q.Size, q.SHA256, q.URL, q.Header})
	if err != nil {
		return nil, fmt.Errorf("push of run %s: %w", q.RunKey, err)
	}
	return append(line, '\n'), nil
}

// ParsePush reads the stdout of a push script. An answer that is not whole, or that is
// not to the question, is a *[JournalError].
func ParsePush(q PushRequest, out []byte) (PushReply, error) {
	a, err := parseAnswer("push", out)
	if err != nil {
		return PushReply{}, err
	}
	reply := PushReply{SHA256: a.fields["digest"], Stored: a.fields["result"] == "stored"}
	if reply.Size, err = a.number("size"); err != nil {
		return PushReply{}, err
	}
	overlap := a.fields["overlap"]
	if overlap == "-" {
		overlap = ""
	}
	reply.Overlap, err = hex.DecodeString(overlap)
	sum, badSum := hex.DecodeString(reply.SHA256)
	switch {
	case err != nil || badSum != nil || len(sum) != 32 || reply.Size > q.Max,
		int64(len(reply.Overlap)) != min(q.From, JournalOverlap),
		!reply.Stored && a.fields["result"] != "measured":
		return PushReply{}, incomplete("push")
	}
	return reply, a.done()
}

// Push has the sandbox's agent measure or store a piece of a journal.
func (p *JournalProber) Push(ctx context.Context, q PushRequest) (PushReply, error) {
	input, err := PushInput(q)
	if err != nil {
		return PushReply{}, err
	}
	out, err := p.Exec.Exec(ctx, q.Target, q.Target.among(p.Format.PushScript()), input)
	if err != nil {
		return PushReply{}, err
	}
	return ParsePush(q, out.Stdout)
}

// Push asks the probe function.
func (p RemoteProber) Push(ctx context.Context, q PushRequest) (PushReply, error) {
	answer, err := p.Caller.Call(ctx, ProbeCall{Push: &q})
	switch {
	case err != nil:
		return PushReply{}, fmt.Errorf("push of run %s: %w", q.RunKey, err)
	case answer.Failure != nil:
		return PushReply{}, fmt.Errorf("push of run %s: %w", q.RunKey, answer.Failure)
	case answer.Push == nil:
		return PushReply{}, errNoAnswer
	}
	return *answer.Push, nil
}

// UploadRequest names a piece of a journal and where it is to be stored.
type UploadRequest struct {
	RunKey
	Target ExecTarget
	Nonce  string
	From   int64
	Max    int64
	Key    string
}

// JournalUploader moves a piece of a large journal from its sandbox into the blobs, past
// the terminal's channel.
type JournalUploader interface {
	// Upload stores the journal's bytes from From on, at most Max, under Key, and tells
	// what they are. An error says that nothing of them may be used.
	Upload(ctx context.Context, q UploadRequest) (PushReply, error)
}

// PutGranter grants the right to write one object.
type PutGranter interface {
	// GrantPut is as that of [Objects].
	GrantPut(ctx context.Context, key, sha256 string, size int64, ttl time.Duration) (Grant, error)
}

// GrantedUploader is the [JournalUploader] that has the agent measure a piece, grants it
// the right to write exactly that, and has it store it: what arrives is what was
// measured, since the store itself refuses anything else.
type GrantedUploader struct {
	Pusher JournalPusher
	Grants PutGranter
}

// uploadGrant is how long an agent may use its right.
const uploadGrant = 5 * time.Minute

// Upload measures, grants and stores.
func (u GrantedUploader) Upload(ctx context.Context, q UploadRequest) (PushReply, error) {
	ask := PushRequest{RunKey: q.RunKey, Target: q.Target, Nonce: q.Nonce, From: q.From, Max: q.Max}
	measured, err := u.Pusher.Push(ctx, ask)
	if err != nil {
		return PushReply{}, err
	}
	if measured.Size == 0 {
		return PushReply{}, &JournalError{Op: "push", Healing: Retry, Reason: "nothing-to-push"}
	}
	grant, err := u.Grants.GrantPut(ctx, q.Key, measured.SHA256, measured.Size, uploadGrant)
	if err != nil {
		return PushReply{}, fmt.Errorf("upload of run %s: %w", q.RunKey, err)
	}
	ask.Size, ask.SHA256, ask.URL, ask.Header = measured.Size, measured.SHA256, grant.URL, grant.Header
	stored, err := u.Pusher.Push(ctx, ask)
	if err != nil {
		return PushReply{}, err
	}
	if !stored.Stored || stored.Size != measured.Size || stored.SHA256 != measured.SHA256 {
		return PushReply{}, &JournalError{Op: "push", Healing: Retry, Reason: "journal-changed"}
	}
	return stored, nil
}
