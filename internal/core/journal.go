package core

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JournalFormat holds every literal of the journal: where its files are, how a
// run id becomes a file name, and what the closing line looks like. It is a value
// so that other constants can be put in; [DefaultJournal] is ours.
//
// A run's files in the sandbox, all in Dir and named after the token of its id:
//
//	<token><Ext>        the agent's stdout, then a newline and the sentinel line
//	<token><ErrExt>     the agent's stderr
//	<token><MarkerExt>/ made once, by whoever decides whether the agent begins;
//	                    in it wrapper (pid, start time), stop, end, input
//	<token><FilesExt>   the side journal: what changed in the workspace
type JournalFormat struct {
	Dir         string // absolute; [JournalDirVariable] in the sandbox overrides it
	Ext         string // of the journal, with its dot
	ErrExt      string // of the stderr sidecar
	MarkerExt   string // of the start marker; empty: names of markers do not decode
	FilesExt    string // of the side journal of changed files; empty: likewise
	NonceDomain string // without the colon that separates it from the id
	NonceHex    int    // hex digits of a derived nonce
	ExitKey     string // member of the sentinel that holds the exit status
	NonceKey    string // member of the sentinel that holds the nonce
	MaxToken    int    // longest token, bytes
	HashHex     int    // hex digits of the hash that ends a shortened token
}

// DefaultJournal is the format of Sandkeeper's own sandboxes.
var DefaultJournal = JournalFormat{
	Dir:         "/tmp/sandkeeper-runs",
	Ext:         ".ndjson",
	ErrExt:      ".err",
	MarkerExt:   ".started",
	FilesExt:    ".files",
	NonceDomain: "sandkeeper/journal-exit/v1",
	NonceHex:    32,
	ExitKey:     "__exit",
	NonceKey:    "__nonce",
	MaxToken:    200,
	HashHex:     16,
}

// Names of the environment variables that the scripts read and the agent gets.
const (
	// JournalDirVariable overrides [JournalFormat.Dir] inside a sandbox. It has to
	// be the same for every script of a sandbox, so it belongs in the container's
	// environment.
	JournalDirVariable = "SANDKEEPER_JOURNAL_DIR"
	// JournalRunVariable carries the run's mark in the agent's environment, by
	// which all its descendants are found, reparented ones too.
	JournalRunVariable = "SANDKEEPER_RUN"
	// MCPURLVariable, MCPTokenVariable and MCPConfigVariable tell an agent where its tools
	// are: the URL of an MCP server on loopback, the bearer that it wants, and the path of a
	// file with both under mcpServers.
	MCPURLVariable    = "SANDKEEPER_MCP_URL"
	MCPTokenVariable  = "SANDKEEPER_MCP_TOKEN"
	MCPConfigVariable = "SANDKEEPER_MCP_CONFIG"
	// JournalInitVariable names the process whose user, groups, environment and
	// working directory the agent gets: a process id, by default 1, the container's
	// main process; "self" means the exec session's own. It is for sandboxes
	// without a PID namespace of their own.
	JournalInitVariable = "SANDKEEPER_INIT_PID"
)

// MaxSentinelLine is the longest line, in bytes, that may be a sentinel.
const MaxSentinelLine = 4096

// Token turns a run's id into a file name without extension: ASCII letters,
// digits, dot and hyphen stay, every other byte becomes _hh. Tokens of different
// ids differ, so two runs never share a journal. An empty id and one that is not
// UTF-8 are refused.
func (f JournalFormat) Token(run RunID) (string, error) {
	id := string(run)
	if id == "" {
		return "", fmt.Errorf("encode run id %q: want at least one character", id)
	}
	if !utf8.ValidString(id) {
		return "", fmt.Errorf("encode run id %q: want valid UTF-8", id)
	}
	token := KeyToken(id)
	if deviceName(token) {
		token = escapeEvery(token)
	}
	if len(token) > f.MaxToken {
		sum := sha256.Sum256([]byte(id))
		token = token[:f.MaxToken-f.HashHex-1] + "-" + hex.EncodeToString(sum[:])[:f.HashHex]
	}
	return token, nil
}

func escapeEvery(id string) string {
	var b strings.Builder
	for i := range len(id) {
		fmt.Fprintf(&b, "_%02x", id[i])
	}
	return b.String()
}

func plainTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-'
}

// deviceName tells names that no file may have on some file systems, whatever
// their case.
func deviceName(token string) bool {
	switch upper := strings.ToUpper(token); {
	case upper == "CON", upper == "PRN", upper == "AUX", upper == "NUL":
		return true
	case len(upper) == 4 && (strings.HasPrefix(upper, "COM") || strings.HasPrefix(upper, "LPT")):
		return upper[3] >= '1' && upper[3] <= '9'
	}
	return false
}

// JournalNameKind says what a directory entry's name told.
type JournalNameKind string

// The answers of [JournalFormat.DecodeName]. The zero value is none of them and,
// like all but JournalNameRun, never allows a delete.
const (
	JournalNameRun       JournalNameKind = "runId"
	JournalNameTruncated JournalNameKind = "truncated"
	JournalNameMalformed JournalNameKind = "malformed"
)

// JournalName is a decoded directory entry. Run is set for JournalNameRun only.
type JournalName struct {
	Kind JournalNameKind
	Run  RunID
}

// DecodeName tells which run a directory entry belongs to. It fails closed: only
// a name that the encoder itself writes for a run decodes to that run.
func (f JournalFormat) DecodeName(name string) JournalName {
	malformed := JournalName{Kind: JournalNameMalformed}
	token, ok := f.cutExtension(name)
	if !ok || token == "" {
		return malformed
	}
	if len(token) > f.MaxToken || len(token) == f.MaxToken && f.endsInHash(token) {
		return JournalName{Kind: JournalNameTruncated}
	}
	id, ok := unescapeToken(token)
	if !ok {
		return malformed
	}
	// A name written another way would lead to files other than the one it names.
	if again, err := f.Token(RunID(id)); err != nil || again != token {
		return malformed
	}
	return JournalName{Kind: JournalNameRun, Run: RunID(id)}
}

func (f JournalFormat) cutExtension(name string) (string, bool) {
	for _, ext := range []string{f.Ext, f.ErrExt, f.MarkerExt, f.FilesExt} {
		if ext == "" {
			continue
		}
		if token, ok := strings.CutSuffix(name, ext); ok {
			return token, true
		}
	}
	return "", false
}

func (f JournalFormat) endsInHash(token string) bool {
	tail := token[len(token)-f.HashHex-1:]
	return tail[0] == '-' && strings.Trim(tail[1:], "0123456789abcdef") == ""
}

func unescapeToken(token string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if plainTokenByte(c) {
			b.WriteByte(c)
			continue
		}
		if c != '_' || i+3 > len(token) {
			return "", false
		}
		raw, err := hex.DecodeString(token[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.WriteByte(raw[0])
		i += 2
	}
	return b.String(), utf8.ValidString(b.String())
}

// JournalPaths are the places of one run's files.
type JournalPaths struct {
	Token, Dir, Journal, Stderr, Marker, Files string
}

// Paths gives the places of run's files below f.Dir, from which at most one
// trailing slash is taken off.
func (f JournalFormat) Paths(run RunID) (JournalPaths, error) {
	token, err := f.Token(run)
	if err != nil {
		return JournalPaths{}, err
	}
	dir := f.dir()
	base := dir + "/" + token
	return JournalPaths{Token: token, Dir: dir, Journal: base + f.Ext, Stderr: base + f.ErrExt, Marker: base + f.MarkerExt, Files: base + f.files()}, nil
}

func (f JournalFormat) dir() string { return strings.TrimSuffix(f.Dir, "/") }

// NewJournalNonce draws the 128 random bits, as 32 hex digits, that close one
// run's journal. They are kept on the run's record.
func NewJournalNonce() string {
	var raw [16]byte
	rand.Read(raw[:]) // never fails: the runtime ends the process instead
	return hex.EncodeToString(raw[:])
}

// DerivedNonce computes a nonce from the id alone, for journals whose record has
// none. It tells runs apart; it is no secret.
func (f JournalFormat) DerivedNonce(run RunID) string {
	sum := sha256.Sum256([]byte(f.NonceDomain + ":" + string(run)))
	return hex.EncodeToString(sum[:])[:f.NonceHex]
}

// Sentinel is the line, without its newline, that the wrapper writes when the
// agent ended with the status exit.
func (f JournalFormat) Sentinel(nonce string, exit int) string {
	return fmt.Sprintf(`{"%s":%d,"%s":"%s"}`, f.ExitKey, exit, f.NonceKey, nonce)
}

// sentinelSpace is what may stand around a sentinel on its line.
const sentinelSpace = " \t\r\n\v\f"

// ParseSentinel tells whether line closes the journal of the run with nonce, and
// with which status: a JSON object whose members of exactly these names hold this
// nonce as a string and an integer as a number. Everything else is output. Of
// members with the same name the last counts.
func (f JournalFormat) ParseSentinel(nonce string, line []byte) (exit int, ok bool) {
	line = bytes.Trim(line, sentinelSpace)
	if nonce == "" || len(line) > MaxSentinelLine || !bytes.HasPrefix(line, []byte("{")) {
		return 0, false
	}
	// Most lines of a journal are JSON objects; without the nonce, spelled out or
	// escaped, none of them needs to be parsed.
	if !bytes.Contains(line, []byte(nonce)) && !bytes.Contains(line, []byte(`\u`)) {
		return 0, false
	}
	// A map keeps the names' case, which a struct would not.
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil {
		return 0, false
	}
	var seen string
	raw := members[f.NonceKey]
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &seen) != nil || seen != nonce {
		return 0, false
	}
	exit, err := strconv.Atoi(string(members[f.ExitKey]))
	if err != nil {
		return 0, false
	}
	return exit, true
}

// LastExit finds the last sentinel of the run with nonce in the tail of a
// journal. The tail may begin and end within a line.
func (f JournalFormat) LastExit(nonce string, tail []byte) (exit int, ok bool) {
	for end := len(tail); end >= 0; {
		begin := bytes.LastIndexByte(tail[:end], '\n') + 1
		if exit, ok := f.ParseSentinel(nonce, tail[begin:end]); ok {
			return exit, true
		}
		end = begin - 1
	}
	return 0, false
}
