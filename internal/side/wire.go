package side

import (
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// The descriptors of a companion's two pipes.
const (
	TellFD = 3 // from the wrapper: a [Config], then each [Told]
	SaidFD = 4 // to the wrapper: each [Said]
)

// Config is what a companion is started for.
type Config struct {
	core.Side
	Run     core.RunID `json:"run"`
	Journal string     `json:"journal"` // path
	Marker  string     `json:"marker"`  // directory, of the run's start marker
	Files   string     `json:"files"`   // path of the side journal
	Root    string     `json:"root"`    // of the workspace, absolute
	// Addr and Token are those of a companion before this one, whose server the agent
	// knows; empty: none was.
	Addr  string `json:"addr,omitempty"`
	Token string `json:"token,omitempty"`
}

// Told is how far a run is, as the wrapper tells it.
type Told struct {
	// Over says that the agent, and what it left behind, has ended; End is where its
	// output ends.
	Over bool  `json:"over,omitempty"`
	End  int64 `json:"end,omitempty"`
	// Sealed says that the sentinel is on the disk.
	Sealed bool `json:"sealed,omitempty"`
	Exit   int  `json:"exit,omitempty"`
}

// Said is what a companion says.
type Said struct {
	Ready *Ready `json:"ready,omitempty"`
	// Watching says that from here on every change of a file is told, or that none will be.
	Watching bool `json:"watching,omitempty"`
	// Drained says that every change of a file that was made before the end is told.
	Drained bool `json:"drained,omitempty"`
}

// Ready says that an agent's tools are served, and where. Token and Agents are secrets.
type Ready struct {
	Addr   string `json:"addr"`
	URL    string `json:"url"`
	Token  string `json:"token"`
	Agents string `json:"agents"` // the text of a configuration that most agents read
}
