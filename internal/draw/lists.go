package draw

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// roomy is up to how many items a list without a bound has.
const roomy = 64

// SliceOf makes lists of item's values, none among them.
func SliceOf[V any](item Generator[V]) Generator[[]V] { return SliceOfN(item, 0, roomy) }

// SliceOfN makes lists of least to most of item's values, the two lengths more often than
// others, and with one value several times. Shorter is simpler. No list is nil.
func SliceOfN[V any](item Generator[V], least, most int) Generator[[]V] {
	size := bounds(least, most)
	return Custom(func(t *T) []V {
		list := []V{}
		t.items(size, func() bool { list = append(list, item.value(t)); return true })
		return list
	})
}

// SliceOfNDistinct is SliceOfN without two values that are equal.
func SliceOfNDistinct[V comparable](item Generator[V], least, most int) Generator[[]V] {
	size := bounds(least, most)
	return Custom(func(t *T) []V {
		list := []V{}
		t.items(size, func() bool {
			v := item.value(t)
			if slices.Contains(list, v) {
				return false
			}
			list = append(list, v)
			return true
		})
		return list
	})
}

// MapOfN makes maps of least to most keys. No map is nil.
func MapOfN[K comparable, V any](key Generator[K], value Generator[V], least, most int) Generator[map[K]V] {
	size := bounds(least, most)
	return Custom(func(t *T) map[K]V {
		m := map[K]V{}
		t.items(size, func() bool {
			k := key.value(t)
			if _, is := m[k]; is {
				return false
			}
			m[k] = value.value(t)
			return true
		})
		return m
	})
}

// size is how many items there may be, both bounds among them.
type size struct{ least, most int }

func bounds(least, most int) size {
	if least < 0 || most < least {
		panic(fmt.Sprintf("draw: the number of items is from %d to %d", least, most))
	}
	return size{least, most}
}

// items has item make one after the other. Before each is a choice, 1 for another and 0
// for no more, so that it and the item's own can go together. item says no to a value
// that cannot be among the others.
func (t *T) items(s size, item func() bool) {
	goal := s.least
	if t.random != nil {
		goal += int(edged(uint64(s.most - s.least))(t.random))
	}
	var made []span
	for more := true; more; {
		made = append(made, t.part(func() {
			n := len(made)
			more = t.another(n, s, goal) && (t.until(func() bool { return t.repeat(made, item) }) || t.last(n < s.least))
		}))
	}
}

// another chooses whether there is one more item than n. The choice is made even where
// there is none, so that a list can lose any of its items and still has its end.
func (t *T) another(n int, s size, goal int) bool {
	t.choose(1, func(*rand.Rand) uint64 {
		if n < goal {
			return 1
		}
		return 0
	})
	choice := &t.taken[len(t.taken)-1]
	switch {
	case n < s.least:
		*choice = 1
	case n == s.most:
		*choice = 0
	}
	return *choice == 1
}

// last takes back that there was to be one more item. It returns false.
func (t *T) last(must bool) bool {
	if must || t.random == nil {
		t.giveUp()
	}
	t.taken[len(t.taken)-1] = 0
	return false
}

// repeat makes an item, of the choices of one that was made now and then.
func (t *T) repeat(made []span, item func() bool) bool {
	if t.random == nil || len(made) == 0 || len(t.echo) > 0 || t.random.IntN(8) > 0 {
		return item()
	}
	one := made[t.random.IntN(len(made))]
	t.echo = slices.Clone(t.taken[one.from+1 : one.to])
	is := item()
	t.echo = nil
	return is
}
