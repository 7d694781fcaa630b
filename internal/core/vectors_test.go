package core_test

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// vectorCase is one result of the original that this package is held against.
type vectorCase struct {
	Name      string
	Input     json.RawMessage
	Want      json.RawMessage
	Quirk     string                     // why the original's result need not be matched
	Constants map[string]json.RawMessage // of the whole file
}

// vectorExemption lists cases that the design decides otherwise.
type vectorExemption struct {
	file   string
	name   string                  // one case's name, or
	cases  func(c vectorCase) bool // a rule that tells which
	reason string
}

func (e vectorExemption) covers(c vectorCase) bool {
	return e.name == c.Name && e.cases == nil || e.cases != nil && e.cases(c)
}

// vectorExemptions is added to by the files whose vectors need it; see
// exemptVectors.
var vectorExemptions []vectorExemption

// exemptVectors adds to the list of cases that must not pass. It is called in the
// initialisation of a test file's variable, next to the tests it is about.
func exemptVectors(list ...vectorExemption) struct{} {
	vectorExemptions = append(vectorExemptions, list...)
	return struct{}{}
}

// vectorDirectory is where the vectors are: SANDKEEPER_VECTORS, or beside the
// repository. Where they are not, the tests that read them are skipped; in CI they
// fail.
func vectorDirectory(t *testing.T) string {
	t.Helper()
	dir := cmp.Or(os.Getenv("SANDKEEPER_VECTORS"), filepath.Join("..", "..", "..", "shared", "vectors"))
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("read vectors: %v", err)
		}
		t.Skipf("read vectors: %v", err)
	}
	return dir
}

// vectorFile is one file of vectors.
type vectorFile struct {
	Constants map[string]json.RawMessage
	Cases     []vectorCase
}

func readVectors(t *testing.T, file string) vectorFile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(vectorDirectory(t), file+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var content vectorFile
	if err := json.Unmarshal(data, &content); err != nil {
		t.Fatalf("decode vectors %s: %v", file, err)
	}
	return content
}

// forEachVector runs check on each case of a vector file. check returns how the
// result differs from the wanted one, nil if it does not. A difference fails the
// test unless the case is a quirk of the original or is listed in
// vectorExemptions; a listed case without a difference fails it too.
func forEachVector(t *testing.T, file string, check func(t *testing.T, c vectorCase) error) {
	t.Helper()
	content := readVectors(t, file)
	if len(content.Cases) == 0 {
		t.Fatalf("decode vectors %s: no cases", file)
	}
	for _, c := range content.Cases {
		c.Constants = content.Constants
		t.Run(c.Name, func(t *testing.T) { judgeVector(t, file, c, check(t, c)) })
	}
}

func judgeVector(t *testing.T, file string, c vectorCase, difference error) {
	t.Helper()
	for _, e := range vectorExemptions {
		if e.file != file || !e.covers(c) {
			continue
		}
		if difference == nil {
			t.Errorf("listed as decided otherwise (%s), but the result is the original's", e.reason)
		}
		return
	}
	switch {
	case difference == nil:
	case c.Quirk != "":
		t.Logf("differs from a quirk of the original (%s): %v", c.Quirk, difference)
	default:
		t.Errorf("%v\ninput %.2000s\nwant %.2000s", difference, c.Input, c.Want)
	}
}

// decode reads input and want of a case.
func (c vectorCase) decode(t *testing.T, input, want any) {
	t.Helper()
	if err := errors.Join(json.Unmarshal(c.Input, input), json.Unmarshal(c.Want, want)); err != nil {
		t.Fatalf("decode case %s: %v", c.Name, err)
	}
}

// constant reads one of the file's constants.
func (c vectorCase) constant(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(c.Constants[name], into); err != nil {
		t.Fatalf("decode constant %s: %v", name, err)
	}
}

// wtf8 is a text of the vectors that may be no well-formed Unicode.
type wtf8 string

// UnmarshalJSON reads a JSON string, or {"$wtf8": hex}.
func (s *wtf8) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*s = wtf8(text)
		return nil
	}
	var odd struct {
		Hex string `json:"$wtf8"`
	}
	if err := json.Unmarshal(data, &odd); err != nil {
		return err
	}
	raw, err := hex.DecodeString(odd.Hex)
	*s = wtf8(raw)
	return err
}
