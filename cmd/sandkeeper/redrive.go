package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// redriveCommand brings dead letters back.
type redriveCommand struct {
	Queue string `enum:"all,reclaim,shards,events" default:"all" help:"Whose dead letters: reclaim, shards, events or all."`
	sure
	rehearsal
}

// letter is one dead letter and what became of it.
type letter struct {
	ID       string `json:"messageId"`
	Queue    string `json:"queue"`
	State    string `json:"state"` // sent, settled, invalid or failed, or what of them would be
	Why      string `json:"why"`
	Body     string `json:"body"`
	SentAt   stamp  `json:"sentAt,omitzero"`
	Received int    `json:"received"` // how often it was handed out in all

	receipt string
}

// What becomes of a dead letter.
const (
	letterSent    = "sent"    // to its queue again, and removed here
	letterSettled = "settled" // nothing of it is owed any more: removed
	letterInvalid = "invalid" // not what the functions write: left
	letterFailed  = "failed"  // could not be checked, sent or removed: left
)

// Dead letters stay out of others' hands for lettersHidden seconds while they are looked at,
// so that none is met twice; one redrive takes at most lettersMost of a queue, and none after
// lettersWithin. Answers without a new letter say that the queue is empty once there were
// answersEmpty with nothing, or answersOld with what was met before.
const (
	lettersHidden = 900
	lettersWithin = lettersHidden * time.Second / 2
	lettersMost   = 10_000
	lettersAtOnce = 10
	answersEmpty  = 2
	answersOld    = 100
)

// Run receives every letter, checks it against its format and the records, sends
// what is still owed, and removes what was sent or is settled. In this order: a crash
// between leaves a letter twice, never not at all.
func (c *redriveCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	queues, waiting, err := c.queues(ctx, in, out)
	if err != nil {
		return err
	}
	// The number is SQS's guess: none is no reason not to ask.
	if !c.DryRun && !c.Yes {
		if err := out.Confirm(ctx, fmt.Sprintf("check about %d dead letters, and send what is still owed?", waiting)); err != nil {
			return err
		}
	}
	letters, failed := []letter{}, error(nil)
	bar := out.Bar(int64(waiting), "letters")
	for _, r := range queues {
		some, err := r.all(ctx, len(letters), bar)
		letters, failed = append(letters, some...), errors.Join(failed, err)
	}
	bar.Done()
	counted := map[string]int{letterSent: 0, letterSettled: 0, letterInvalid: 0, letterFailed: 0}
	for _, l := range letters {
		counted[l.State]++
	}
	if err := out.Print(map[string]any{"dryRun": c.DryRun, "counts": counted, "letters": letters}, func(w *console.Writer) {
		printLetters(w, letters, c.DryRun)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed // what was done before is printed
	}
	if left := counted[letterInvalid] + counted[letterFailed]; left > 0 {
		return &findingsError{left}
	}
	return nil
}

// deadLetters are the queues of dead letters, by what they are for.
var deadLetters = []string{"reclaim", "shards", "events"}

// queues are those that are chosen, and about how many letters there are in all.
func (c *redriveCommand) queues(ctx context.Context, in *installation, out *console.Console) (chosen []*redrive, waiting int, err error) {
	for _, name := range deadLetters {
		if c.Queue != "all" && c.Queue != name {
			continue
		}
		r := &redrive{in: in, out: out, dry: c.DryRun, name: name}
		r.wire()
		n, err := r.waiting(ctx)
		if err != nil {
			return nil, 0, err
		}
		chosen, waiting = append(chosen, r), waiting+n
	}
	return chosen, waiting, nil
}

func printLetters(w *console.Writer, letters []letter, dry bool) {
	var rows [][]string
	for _, l := range letters {
		rows = append(rows, []string{l.ID, l.Queue, l.State, l.Why, strconv.Itoa(l.Received), l.Body})
	}
	w.Table([]string{"MESSAGE", "QUEUE", "STATE", "WHY", "RECEIVED", "BODY"}, rows, "no dead letters")
	if dry && len(rows) > 0 {
		w.Line("dry run: every letter is where it was")
	}
}

// redrive is one redrive under way.
type redrive struct {
	in   *installation
	out  *console.Console
	dry  bool
	name string // whose dead letters
	dead string // URL of the dead-letter queue
	// check says what a letter is: sent stands for one that is to be sent.
	check func(ctx context.Context, body string) (state, why string)
	send  func(ctx context.Context, body string) error
}

// wire chooses the queue.
func (r *redrive) wire() {
	switch r.name {
	case "events":
		r.wireEvents()
	case "shards":
		r.wireShards()
	default:
		r.wireJobs()
	}
}

func (r *redrive) wireShards() {
	shards := sqsout.NewShards(r.in.queues, r.in.out[names.OutShardQueue])
	r.dead = r.in.out[names.OutShardDead]
	r.check = func(_ context.Context, body string) (string, string) {
		if _, err := sqsout.DecodeShards(body); err != nil {
			return letterInvalid, err.Error()
		}
		return letterSent, "a shard to sweep"
	}
	r.send = func(ctx context.Context, body string) error {
		request, err := sqsout.DecodeShards(body)
		if err != nil {
			return err
		}
		return shards.SendShards(ctx, request.Shards)
	}
}

func (r *redrive) wireJobs() {
	jobs := sqsout.New(r.in.queues, r.in.out[names.OutReclaimQueue])
	debts := core.Debts{Runs: r.in.runs, Sandboxes: r.in.boxes, Ledger: r.in.boxes}
	r.dead = r.in.out[names.OutDeadLetterQueue]
	r.check = func(ctx context.Context, body string) (string, string) { return checkJob(ctx, debts, body) }
	r.send = func(ctx context.Context, body string) error {
		job, err := sqsout.Decode(body)
		if err != nil {
			return err
		}
		return jobs.Send(ctx, []core.ReclaimJob{job})
	}
}

// checkJob reads a reclaim message and asks the records whether it is still owed.
func checkJob(ctx context.Context, debts core.Debts, body string) (state, why string) {
	job, err := sqsout.Decode(body)
	if err != nil {
		return letterInvalid, err.Error()
	}
	owed, why, err := debts.Owed(ctx, job)
	switch {
	case err != nil:
		return letterFailed, err.Error()
	case !owed:
		return letterSettled, why
	}
	return letterSent, why
}

// waiting is about how many letters there are.
func (r *redrive) waiting(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return depth(ctx, r.in.queues, r.dead)
}

// depth is about how many messages a queue holds.
func depth(ctx context.Context, queues *sqs.Client, url string) (int, error) {
	name := types.QueueAttributeNameApproximateNumberOfMessages
	answer, err := queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{name}})
	if err != nil {
		return 0, fmt.Errorf("read depth of %s: %w", url, err)
	}
	n, err := strconv.Atoi(answer.Attributes[string(name)])
	if err != nil {
		return 0, fmt.Errorf("read depth of %s: %w", url, err)
	}
	return n, nil
}

// all goes through the queue once, and returns what became of each letter up to an
// error; there may be more is one. What stays is handed back at the end: until then it is
// hidden, so that nothing is met twice.
func (r *redrive) all(ctx context.Context, before int, bar *console.Bar) ([]letter, error) {
	letters, seen := []letter{}, map[string]bool{}
	defer func() { r.handBack(context.WithoutCancel(ctx), letters) }()
	begun := time.Now()
	for empty, old := 0, 0; empty < answersEmpty; { // a queue may answer with nothing although it holds something
		if len(letters) >= lettersMost || time.Since(begun) > lettersWithin || old == answersOld {
			return letters, fmt.Errorf("redrive of %s: %d letters were looked at, and there may be more: redrive again", r.name, len(letters))
		}
		batch, err := r.receive(ctx)
		if err != nil {
			return letters, err
		}
		var fresh []letter
		for _, l := range batch {
			if !seen[l.ID] {
				seen[l.ID] = true
				fresh = append(fresh, l)
			}
		}
		switch {
		case len(batch) == 0:
			empty++
		case len(fresh) == 0:
			empty, old = 0, old+1
		default:
			empty, old = 0, 0
		}
		each(len(fresh), lettersAtOnce, func(i int) { fresh[i] = r.one(ctx, fresh[i]) })
		letters = append(letters, fresh...)
		bar.At(int64(before + len(letters)))
	}
	return letters, nil
}

// each does something for every index up to n, at most width at a time.
func each(n, width int, do func(i int)) {
	var all errgroup.Group
	all.SetLimit(width)
	for i := range n {
		all.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = all.Wait() // none of them errs
}

func (r *redrive) receive(ctx context.Context) ([]letter, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := r.in.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &r.dead, MaxNumberOfMessages: 10, VisibilityTimeout: lettersHidden, WaitTimeSeconds: 1,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameApproximateReceiveCount,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("receive from %s: %w", r.dead, err)
	}
	var letters []letter
	for _, m := range answer.Messages {
		sent, _ := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64) // for people alone
		received, _ := strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
		letters = append(letters, letter{
			ID: aws.ToString(m.MessageId), Queue: r.name, Body: aws.ToString(m.Body), SentAt: stamp(sent), Received: received, receipt: aws.ToString(m.ReceiptHandle),
		})
	}
	return letters, nil
}

// one does what is to be done with a letter.
func (r *redrive) one(ctx context.Context, l letter) letter {
	l.State, l.Why = r.check(ctx, l.Body)
	if r.dry {
		return l
	}
	if l.State == letterSent {
		if err := r.send(ctx, l.Body); err != nil {
			l.State, l.Why = letterFailed, err.Error()
		}
	}
	if l.State == letterSent || l.State == letterSettled {
		if _, err := r.in.queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &r.dead, ReceiptHandle: &l.receipt}); err != nil {
			l.State, l.Why = letterFailed, "remove it: "+err.Error()
		}
	}
	return l
}

// handBack makes what stays visible at once.
func (r *redrive) handBack(ctx context.Context, letters []letter) {
	var hidden atomic.Int64
	var why atomic.Pointer[string]
	each(len(letters), lettersAtOnce, func(i int) {
		if l := letters[i]; r.dry || l.State == letterInvalid || l.State == letterFailed {
			if err := r.show(ctx, l); err != nil {
				hidden.Add(1)
				why.Store(new(err.Error()))
			}
		}
	})
	if n := hidden.Load(); n > 0 {
		r.out.Note("%d letters of %s stay hidden for up to %d s: %s", n, r.name, lettersHidden, *why.Load())
	}
}

func (r *redrive) show(ctx context.Context, l letter) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	_, err := r.in.queues.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &r.dead, ReceiptHandle: &l.receipt, VisibilityTimeout: 0,
	})
	return err
}
