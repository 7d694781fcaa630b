package core_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// compareVectors runs check as [forEachVector] does, says how many of the file's
// cases were compared and how many are listed as decided otherwise, and fails if
// none was compared.
func compareVectors(t *testing.T, file string, check func(t *testing.T, c vectorCase) error) {
	t.Helper()
	compared, listed, quirks := 0, 0, 0
	forEachVector(t, file, func(t *testing.T, c vectorCase) error {
		difference := check(t, c)
		switch {
		case listedVector(file, c):
			listed++
		case difference != nil && c.Quirk != "":
			quirks++
		default:
			compared++
		}
		return difference
	})
	t.Logf("vectors %s: %d compared, %d listed as decided otherwise, %d quirks that differ", file, compared, listed, quirks)
	if compared == 0 {
		t.Errorf("vectors %s: no case was compared", file)
	}
}

func listedVector(file string, c vectorCase) bool {
	return slices.ContainsFunc(vectorExemptions, func(e vectorExemption) bool { return e.file == file && e.covers(c) })
}

// vectorNumber is a number of the vectors, among them those that JSON lacks.
type vectorNumber float64

// UnmarshalJSON reads a JSON number, or {"$number": text}.
func (n *vectorNumber) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*float64)(n)) == nil {
		return nil
	}
	var odd struct {
		Text string `json:"$number"`
	}
	if err := json.Unmarshal(data, &odd); err != nil {
		return err
	}
	value, err := strconv.ParseFloat(odd.Text, 64)
	*n = vectorNumber(value)
	return err
}

// milliseconds is n as a duration, a century at most.
func (n vectorNumber) milliseconds() time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	if d := float64(n) * float64(time.Millisecond); d < float64(century) {
		return time.Duration(d)
	}
	return century // also for what is no number: no time is ever over
}

// inBubble runs check in a bubble of its own.
func inBubble(t *testing.T, check func(t *testing.T) error) error {
	t.Helper()
	var difference error
	synctest.Test(t, func(t *testing.T) { difference = check(t) })
	return difference
}

// unlessQuirk lets a rule speak of no quirk: those need not be listed.
func unlessQuirk[I any](rule func(in I) bool) func(c vectorCase) bool {
	return func(c vectorCase) bool {
		var in I
		return c.Quirk == "" && json.Unmarshal(c.Input, &in) == nil && rule(in)
	}
}

// unmatchedVectors are the files to which this design has nothing to match.
var unmatchedVectors = map[string]string{
	"align": "a log is addressed by the journal's byte offset (DESIGN 5.5): a drive goes on at the log's end, nothing is " +
		"replayed from the beginning and matched against what was delivered; a journal that was rewritten is told by its last bytes (5.8)",
	"chunk_identity": "the log is the agent's stdout, byte for byte (DESIGN 4.1, 7): there are no chunks of a protocol that could be alike",
	"quiescence": "each append is conditional on the claim's epoch and on the log's end, in one request (DESIGN 4.1, I3): " +
		"a predecessor that still writes is refused, so nobody waits for a quiet log (5.5)",
}

// TestVectorsWithoutCounterpart lists the files that no test here compares, each
// with its reason, and fails when one of them is not there to be listed.
func TestVectorsWithoutCounterpart(t *testing.T) {
	for file, reason := range unmatchedVectors {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(vectorDirectory(t), file+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var content struct{ Cases []vectorCase }
			if err := json.Unmarshal(data, &content); err != nil || len(content.Cases) == 0 {
				t.Fatalf("decode vectors %s: %d cases, %v", file, len(content.Cases), err)
			}
			t.Logf("vectors %s: 0 compared, %d listed: %s", file, len(content.Cases), reason)
		})
	}
}
