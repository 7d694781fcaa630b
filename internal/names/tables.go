package names

// AttributeType is a DynamoDB scalar type as its API spells it.
type AttributeType string

// The scalar types in use.
const (
	String AttributeType = "S"
	Number AttributeType = "N"
)

// Attribute is a key attribute.
type Attribute struct {
	Name string
	Type AttributeType
}

// The key attributes of every table, and the number attribute, in seconds since
// the Unix epoch, after which DynamoDB may delete an item.
var (
	PK = Attribute{"pk", String}
	SK = Attribute{"sk", String}
)

// SandboxKeys begins the partition keys of instance records.
const SandboxKeys = "key#"

// TTL is the attribute of every table that holds an item's expiry.
const TTL = "expiresAt"

// Shards is the number of values of [DetachedShard] and [DueShard]: 0 to Shards-1.
// It may grow; a reader that queries fewer shards than were written loses rows.
const Shards = 8

// The attributes that only exist to put an item into an index. A sparse index
// holds an item exactly while both of its attributes are there. Times are integer
// milliseconds since the Unix epoch.
const (
	DetachedShard = "detachedShard"
	DetachedSince = "detachedSince"
	DueShard      = "dueShard"
	DueAt         = "dueAt"
	DueKind       = "dueKind"
	ThreadKey     = "threadKey" // <tenant>#<thread>
	StartedAt     = "startedAt"
)

// Index is a global secondary index. It projects the table's keys, its own keys
// and Include, nothing else: writes to other attributes do not touch it.
type Index struct {
	Name    string
	PK, SK  Attribute
	Include []string
}

// Table is a DynamoDB table with the keys [PK] and [SK].
type Table struct {
	Name    string
	Indexes []Index
}

// The indexes of the runs table, and the due index of the sandboxes table.
var (
	DetachedIndex     = Index{Name: "detached", PK: Attribute{DetachedShard, Number}, SK: Attribute{DetachedSince, Number}}
	DueIndex          = Index{Name: "due", PK: Attribute{DueShard, Number}, SK: Attribute{DueAt, Number}, Include: []string{DueKind}}
	ThreadIndex       = Index{Name: "thread", PK: Attribute{ThreadKey, String}, SK: Attribute{StartedAt, Number}}
	SandboxesDueIndex = Index{Name: "due", PK: Attribute{DueShard, Number}, SK: Attribute{DueAt, Number}}
)

// The tables. Name is a logical name: the deployed one comes from the environment.
var (
	Runs        = Table{Name: "runs", Indexes: []Index{DetachedIndex, DueIndex, ThreadIndex}}
	Sandboxes   = Table{Name: "sandboxes", Indexes: []Index{SandboxesDueIndex}}
	Checkpoints = Table{Name: "checkpoints"}
)

// Tables lists every table of the stack.
var Tables = []Table{Runs, Sandboxes, Checkpoints}
