package core

import (
	"context"
	"errors"
)

// Verify tells whether everything that a checkpoint needs is stored, the head where id is
// empty: each object is asked for, the layers are read, and so are some of the packs, all
// where sample is zero.
func (k *Keeper) Verify(ctx context.Context, key ThreadKey, id CheckpointID, sample int) (VerifyReport, error) {
	c, err := k.Show(ctx, key, id)
	if err != nil {
		return VerifyReport{}, err
	}
	made, err := k.Threads.Checkpoint(ctx, key, c.ID)
	if err != nil {
		return VerifyReport{}, err
	}
	// Read anew: a root that was read before says nothing of what is stored now.
	switch _, err := k.readObject(ctx, made.Manifest); {
	case errors.Is(err, ErrNotFound) || errors.Is(err, errAltered):
		return VerifyReport{Checkpoint: c.ID, Broken: []string{made.Manifest.Key}}, nil
	case err != nil:
		return VerifyReport{}, err
	}
	r, err := k.root(ctx, made.Manifest)
	if err != nil {
		return VerifyReport{}, err
	}
	v := verification{k, key, r.facts.Needed(), VerifyReport{Checkpoint: c.ID}, map[int]bool{}}
	v.report.Packs = len(v.needed)
	if err := errors.Join(v.stat(ctx), v.read(ctx, sample)); err != nil {
		return VerifyReport{}, err
	}
	for i, p := range v.needed {
		if v.broken[i] {
			v.report.Broken = append(v.report.Broken, PackKey(key, p))
		}
	}
	if len(v.report.Broken) == 0 {
		err = k.Manifests.Check(ctx, r.data, k.opener(key))
	}
	return v.report, err
}

// verification is one under way.
type verification struct {
	keeper *Keeper
	key    ThreadKey
	needed []PackRef
	report VerifyReport
	broken map[int]bool // by index of needed
}

// stat asks for every object.
func (v *verification) stat(ctx context.Context) error {
	there := make([]bool, len(v.needed))
	err := each(len(v.needed), v.keeper.width(), func(i int) (err error) {
		there[i], err = v.keeper.stored(ctx, PackKey(v.key, v.needed[i]), v.needed[i])
		return ignoreInvalid(err)
	})
	for i, ok := range there {
		if !ok {
			v.broken[i] = true
		}
	}
	return err
}

// read reads objects back, one at a time, evenly spread over all.
func (v *verification) read(ctx context.Context, sample int) error {
	n := len(v.needed)
	if sample <= 0 || sample > n {
		sample = n
	}
	for j := range sample {
		i := j * n / sample
		if v.broken[i] {
			continue
		}
		body, err := v.keeper.opener(v.key)(ctx, v.needed[i])
		switch {
		case ignoreInvalid(err) != nil && !errors.Is(err, ErrNotFound):
			return err
		case err != nil:
			v.broken[i] = true
			continue
		}
		_ = body.Close() // it was read whole
		v.report.Read++
		v.report.Bytes += v.needed[i].Size
	}
	return nil
}

// ignoreInvalid is nil for an error about what was read.
func ignoreInvalid(err error) error {
	if _, ok := errors.AsType[*InvalidError](err); ok {
		return nil
	}
	return err
}
