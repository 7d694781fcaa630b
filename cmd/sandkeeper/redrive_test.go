package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/console"
)

// deadQueue answers each request for letters with the next of its answers, each the numbers
// of letters; then with none. It notes what is removed and handed back.
type deadQueue struct {
	mu      sync.Mutex
	answers [][]int
	removed []string
	back    []string
	refuses string // the action that fails
}

func (q *deadQueue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var in struct{ ReceiptHandle string }
	_ = json.NewDecoder(r.Body).Decode(&in)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if action == q.refuses {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"com.amazonaws.sqs#AccessDenied","message":"no"}`)
		return
	}
	switch action {
	case "DeleteMessage":
		q.removed = append(q.removed, in.ReceiptHandle)
	case "ChangeMessageVisibility":
		q.back = append(q.back, in.ReceiptHandle)
	case "ReceiveMessage":
		var messages []map[string]any
		if len(q.answers) > 0 {
			for _, n := range q.answers[0] {
				body := fmt.Sprint("letter ", n)
				sum := md5.Sum([]byte(body))
				messages = append(messages, map[string]any{"MessageId": fmt.Sprint(n), "ReceiptHandle": fmt.Sprint(n), "Body": body, "MD5OfBody": hex.EncodeToString(sum[:])})
			}
			q.answers = q.answers[1:]
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Messages": messages})
		return
	}
	fmt.Fprint(w, "{}")
}

// redriving is a redrive of the queue; what becomes of each letter check says.
func (q *deadQueue) redriving(t *testing.T, check string) (*redrive, *bytes.Buffer) {
	server := httptest.NewServer(q)
	t.Cleanup(server.Close)
	var errs bytes.Buffer
	return &redrive{
		in: &installation{queues: sqs.New(sqs.Options{
			BaseEndpoint: &server.URL, Region: "eu-west-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""), RetryMaxAttempts: 1, Retryer: aws.NopRetryer{},
		})},
		out: &console.Console{Err: &errs}, name: "reclaim", dead: server.URL,
		check: func(context.Context, string) (string, string) { return check, "as the test says" },
		send:  func(context.Context, string) error { return nil },
	}, &errs
}

func numbers(from, n int) (out []int) {
	for i := range n {
		out = append(out, from+i)
	}
	return out
}

// TestARedriveMeetsEveryLetter: neither an answer without a letter nor answers with what was
// met before, which are there again once it was hidden for long enough, end it too soon.
func TestARedriveMeetsEveryLetter(t *testing.T) {
	for what, answers := range map[string][][]int{
		"in turn":                  {numbers(0, 10), numbers(10, 10), numbers(20, 5)},
		"after an empty answer":    {numbers(0, 10), nil, numbers(10, 10), nil, numbers(20, 5)},
		"after what was met again": {numbers(0, 10), numbers(0, 10), numbers(0, 10), numbers(0, 9), numbers(10, 10), numbers(0, 10), numbers(3, 10), numbers(20, 5)},
		"twice in one answer":      {append(numbers(0, 5), numbers(0, 5)...), numbers(5, 20)},
	} {
		for _, state := range []string{letterSent, letterSettled, letterInvalid, letterFailed} {
			q := &deadQueue{answers: answers}
			r, errs := q.redriving(t, state)
			letters, err := r.all(t.Context(), 0, &console.Bar{})
			if err != nil || len(letters) != 25 || errs.Len() > 0 {
				t.Errorf("%s, %s: met %d letters, %v, %s", what, state, len(letters), err, errs)
			}
			goes := state == letterSent || state == letterSettled
			if gone := len(q.removed) == 25 && len(q.back) == 0; gone != goes || len(q.removed)+len(q.back) != 25 {
				t.Errorf("%s, %s: removed %d, handed back %d", what, state, len(q.removed), len(q.back))
			}
		}
	}
}

// TestARedriveSaysWhatItLeft: one that takes no more letters, or cannot remove or hand back
// some, does not pass for a whole one.
func TestARedriveSaysWhatItLeft(t *testing.T) {
	q := &deadQueue{}
	for n := 0; n <= lettersMost; n += 10 {
		q.answers = append(q.answers, numbers(n, 10))
	}
	r, _ := q.redriving(t, letterInvalid)
	letters, err := r.all(t.Context(), 0, &console.Bar{})
	if err == nil || !strings.Contains(err.Error(), "redrive again") || len(letters) != lettersMost || len(q.back) != lettersMost {
		t.Errorf("met %d letters, handed back %d: %v", len(letters), len(q.back), err)
	}
	q = &deadQueue{answers: slices.Repeat([][]int{numbers(0, 10)}, 10*answersOld)}
	r, _ = q.redriving(t, letterInvalid)
	if letters, err = r.all(t.Context(), 0, &console.Bar{}); err == nil || len(letters) != 10 {
		t.Errorf("of letters that come again and again: %d, %v", len(letters), err)
	}
	q = &deadQueue{answers: [][]int{numbers(0, 10), numbers(10, 10)}, refuses: "DeleteMessage"}
	r, _ = q.redriving(t, letterSent)
	letters, err = r.all(t.Context(), 0, &console.Bar{})
	if err != nil || len(letters) != 20 || len(q.back) != 20 || slices.ContainsFunc(letters, func(l letter) bool { return l.State != letterFailed || !strings.Contains(l.Why, "remove it") }) {
		t.Errorf("of letters that cannot be removed: %+v, %v; handed back %d", letters, err, len(q.back))
	}
	q = &deadQueue{answers: [][]int{numbers(0, 10)}, refuses: "ChangeMessageVisibility"}
	r, errs := q.redriving(t, letterInvalid)
	if letters, err = r.all(t.Context(), 0, &console.Bar{}); err != nil || len(letters) != 10 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "10 letters of reclaim stay hidden") {
		t.Errorf("of letters that cannot be handed back: %d, %v, %s", len(letters), err, errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	q = &deadQueue{answers: [][]int{numbers(0, 10), numbers(10, 10)}}
	r, _ = q.redriving(t, letterSent)
	r.send = func(context.Context, string) error { cancel(); return nil }
	if letters, err = r.all(ctx, 0, &console.Bar{}); codeOf(err) != exitInterrupted || len(letters) != 10 || len(q.removed)+len(q.back) != 10 {
		t.Errorf("interrupted: %d letters, %v, removed %d, handed back %d", len(letters), err, len(q.removed), len(q.back))
	}
}
