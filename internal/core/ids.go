package core

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// TenantID names whose data a record is. "-" stands for the only tenant of an
// installation that has one.
type TenantID string

// RunID names one agent turn, unique in its tenant.
type RunID string

// ThreadID names a conversation, unique in its tenant.
type ThreadID string

// InstanceID is the random id minted for each task ever asked for; it is also
// that RunTask's client token (I6).
type InstanceID string

// SandboxKey is the hex SHA-256 over everything that makes two sandboxes
// interchangeable; see [KeyMaterial].
type SandboxKey string

// RunKey names one run of one tenant. Every operation takes it whole (I16).
type RunKey struct {
	Tenant TenantID `json:"tenant"`
	Run    RunID    `json:"run"`
}

// String gives "tenant/run", for logs and errors.
func (k RunKey) String() string { return string(k.Tenant) + "/" + string(k.Run) }

// Millis is a time in integer milliseconds since the Unix epoch, the form in
// which every record stores times. Zero means "not set".
type Millis int64

// MillisOf converts t, dropping what is finer than a millisecond.
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time converts back to UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add moves m by d.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }

// Sub is the duration from o to m.
func (m Millis) Sub(o Millis) time.Duration { return time.Duration(m-o) * time.Millisecond }

// MaxIDs is how long a tenant's id and a run's or thread's may be together, bytes
// in the form that [KeyToken] gives them. A key in S3 holds both, beside what else it
// says, in 1,024 bytes; in DynamoDB in 2,048.
const MaxIDs = 900

// checkIDs refuses an id that some store or sandbox could not take later on, when
// the run's work would be lost by it.
func checkIDs(tenant TenantID, what, id string) error {
	switch n := len(KeyToken(string(tenant))) + len(KeyToken(id)); {
	case !utf8.ValidString(string(tenant)) || !utf8.ValidString(id):
		return fmt.Errorf("tenant and %s: want UTF-8", what)
	case n > MaxIDs:
		return fmt.Errorf("tenant and %s: want at most %d bytes in keys, got %d", what, MaxIDs, n)
	}
	return nil
}

// KeyToken writes an id as it stands in keys of stores: ASCII letters, digits, "."
// and "-" stay, every other byte of the UTF-8 form, "_" included, becomes "_hh". Two
// ids never share a token, and no token holds a separator.
func KeyToken(id string) string {
	var b strings.Builder
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}
