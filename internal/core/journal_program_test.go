package core_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// TestMain lets the tests' own binary be the sandbox's agent binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run":
			os.Exit(wrapper.Start(os.Stdin, os.Stdout))
		case "probe":
			os.Exit(wrapper.Probe(os.Stdin, os.Stdout))
		case core.WrapperCommand:
			os.Exit(wrapper.Wrap())
		}
	}
	os.Exit(m.Run())
}

// programProbe asks the program what the script is asked.
func (b *box) programProbe(id core.RunID, logEnd int64) []byte {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	query, err := json.Marshal(wrapper.Query{Run: id, Nonce: testNonce, LogEnd: logEnd})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), self, "probe")
	cmd.Env, cmd.Stdin = b.env, bytes.NewReader(query)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("probe: %v", err)
	}
	return out
}
