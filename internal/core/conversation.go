package core

import (
	"context"
	"errors"
)

// MaxConversation is the longest conversation, bytes: more than a function can be given.
const MaxConversation = 16 << 20

// PutConversation saves a thread's conversation as the version after seen, and says which
// runs' transcripts it folds in. Of two that save the same version one is refused as
// "stale-conversation"; one that saves the very same again has succeeded.
func (k *Keeper) PutConversation(ctx context.Context, key ThreadKey, seen int64, data []byte, folded []RunID) (Conversation, error) {
	if err := checkThread(key); err != nil {
		return Conversation{}, err
	}
	if len(data) > MaxConversation {
		return Conversation{}, invalid("too-large", "conversation: want at most %d bytes, got %d", MaxConversation, len(data))
	}
	// Again where a collection began meanwhile: it may take what was stored before.
	for {
		th, err := k.Threads.Thread(ctx, key)
		if err != nil {
			return Conversation{}, err
		}
		if have := th.Conversation; have.Version == seen+1 && have.Object.SHA256 == sumOf(data) {
			return have, nil
		}
		if th.Conversation.Version != seen {
			return Conversation{}, refuse("put conversation", "thread "+key.String(), "stale-conversation")
		}
		put := PutConversation{Seen: th.Conversation, Fence: th.Fence, Runs: folded, Now: nowMillis()}
		if put.Object, err = k.putObject(ctx, objectKey(key, conversationObjects, th.Fence, sumOf(data)), data); err != nil {
			return Conversation{}, err
		}
		th, err = k.Threads.UpdateThread(ctx, key, put)
		if refusalOf(err) != "floor" {
			return th.Conversation, err
		}
	}
}

// Conversation reads a thread's conversation; ErrNotFound if none was saved.
func (k *Keeper) Conversation(ctx context.Context, key ThreadKey) (Conversation, []byte, error) {
	if err := checkThread(key); err != nil {
		return Conversation{}, nil, err
	}
	th, err := k.Threads.Thread(ctx, key)
	switch {
	case err != nil:
		return Conversation{}, nil, err
	case th.Conversation.Version == 0:
		return Conversation{}, nil, ErrNotFound
	case th.Conversation.Object.Key == "": // of a thread that was deleted
		return th.Conversation, nil, nil
	}
	data, err := k.readObject(ctx, th.Conversation.Object)
	return th.Conversation, data, err
}

// errAltered tells of an object that is not what its record says it is.
var errAltered = errors.New("its bytes are not those that were written")

// readObject reads an object whole and holds it against its record.
func (k *Keeper) readObject(ctx context.Context, at ObjectRef) ([]byte, error) {
	data, err := k.Blobs.Blob(ctx, at.Key)
	if err == nil && (sumOf(data) != at.SHA256 || int64(len(data)) != at.Size) {
		err = errAltered
	}
	return data, err
}
