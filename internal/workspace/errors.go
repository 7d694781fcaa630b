package workspace

import "fmt"

// Code classifies an [Error] for whoever decides what happens next.
type Code string

// Codes of this package's errors.
const (
	CodeInvalidWorkspace  Code = "invalid-workspace"  // the root is no directory, or a name in it cannot be
	CodeUnsupportedEntry  Code = "unsupported-entry"  // strict: a link, a special file or an executable
	CodeInvalidPath       Code = "invalid-path"       // a manifest's path or entry, or a conflict with a protected one
	CodeMissingBlob       Code = "missing-blob"       // an object of the checkpoint is not there
	CodeInvalidBlob       Code = "invalid-blob"       // stored bytes are not what the manifest says
	CodeInvalidPolicy     Code = "invalid-policy"     // a policy that cannot be carried out
	CodeInvalidManifest   Code = "invalid-manifest"   // a root or layer that no reader accepts
	CodeTimeLimit         Code = "time-limit"         // the capture's deadline passed; packs so far are kept
	CodeByteLimit         Code = "byte-limit"         // the tree holds more bytes than allowed; packs so far are kept
	CodeRestoreUnfinished Code = "restore-unfinished" // an earlier restore was cut and could not be completed
)

// Error is a refusal or a failure with a code. Path is relative to the root, empty
// where the whole is meant.
type Error struct {
	Code Code
	Path string
	Err  error
}

// Error names the code, the path and the cause.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %v", e.Code, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.Code, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func refuse(code Code, path string, cause error) error {
	return &Error{Code: code, Path: path, Err: cause}
}
