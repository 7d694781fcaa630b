package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	// alikeWithin bounds the search for what somebody may have meant.
	alikeWithin = 5 * time.Second
	// alikeMost is how many of those are named.
	alikeMost = 5
)

// alike adds to the error of a command about a run that there is none which run may have
// been meant: it never takes one for the other.
func (in *installation) alike(ctx context.Context, command any, err error) error {
	about, ok := command.(interface{ key() (core.RunKey, error) })
	if !ok {
		return err
	}
	key, keyErr := about.key()
	ctx, cancel := context.WithTimeout(ctx, alikeWithin)
	defer cancel()
	runs, _, listErr := in.indexed(ctx)
	if keyErr = errors.Join(keyErr, listErr); keyErr != nil {
		return err // the first error is the one that matters
	}
	var names []string
	for _, k := range meant(key, runs) {
		names = append(names, k.String())
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: sandkeeper runs lists those that have not ended, with --all all", err)
	}
	return fmt.Errorf("%w: did you mean %s?", err, strings.Join(names, ", "))
}

// meant are the runs that a wrong name may stand for, the likeliest first: of the same id
// with another tenant, then those whose id begins with it, then those that hold it.
func meant(key core.RunKey, runs []core.Run) []core.RunKey {
	distance := func(k core.RunKey) int {
		given, id := strings.ToLower(string(key.Run)), strings.ToLower(string(k.Run))
		switch {
		case given == id:
			return 0
		case strings.HasPrefix(id, given):
			return 1
		case strings.Contains(id, given), strings.Contains(given, id):
			return 2
		}
		return -1
	}
	var found []core.RunKey
	for _, r := range runs {
		if distance(r.RunKey) >= 0 {
			found = append(found, r.RunKey)
		}
	}
	slices.SortFunc(found, func(a, b core.RunKey) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), strings.Compare(a.String(), b.String()))
	})
	found = slices.Compact(found)
	return found[:min(len(found), alikeMost)]
}
