package sqsout

import (
	"context"
	"fmt"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ core.ShardQueue = (*Shards)(nil)

// Shards sends shards of a sweep to one queue.
type Shards struct{ to sender }

// NewShards returns the queue of shards with that URL.
func NewShards(client client, url string) *Shards { return &Shards{sender{client, url}} }

// shardMessage is {"shards":[n]}, one shard a message: each gets an invocation with
// a time and a failure of its own.
type shardMessage struct {
	Shards []int `json:"shards"`
}

// SendShards sends one message a shard. It sends what it can, and returns an error
// naming every shard that may not have been taken.
func (q *Shards) SendShards(ctx context.Context, shards []int) error {
	messages := make([]shardMessage, len(shards))
	for i, shard := range shards {
		messages[i].Shards = []int{shard}
	}
	return sendAll(ctx, q.to, messages, func(m shardMessage) string { return fmt.Sprintf("shard %d", m.Shards[0]) })
}

// DecodeShards reads a message's body: the shard to sweep. It refuses what SendShards
// does not write, and says what it expected.
func DecodeShards(body string) (core.SweepRequest, error) {
	var m shardMessage
	if err := core.DecodeStrict([]byte(body), &m); err != nil {
		return core.SweepRequest{}, fmt.Errorf("decode shards: %w", err)
	}
	if len(m.Shards) != 1 {
		return core.SweepRequest{}, fmt.Errorf("decode shards: want one shard, got %d", len(m.Shards))
	}
	request := core.SweepRequest{Shards: m.Shards}
	if err := request.Validate(); err != nil {
		return core.SweepRequest{}, fmt.Errorf("decode shards: %w", err)
	}
	return request, nil
}
