package draw

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
)

// Generator makes values of one type. Its zero value is of no use.
type Generator[V any] struct{ value func(*T) V }

// Draw is a value of g's for the run t; label is what a report calls it.
func (g Generator[V]) Draw(t *T, label string) V {
	var v V
	t.part(func() { v = g.value(t) })
	if t.level == 0 {
		t.draws = append(t.draws, drawn{label, shown(v)})
	}
	return v
}

// Example is the value that g makes of a seed, the same for ever. It panics where Draw
// would end the run.
func (g Generator[V]) Example(seed uint64) V {
	return g.value(&T{stream: random(seed), ctx: context.Background()})
}

// Filter makes those of g's values that keep lets pass. A run that is offered none in a
// hundred is given up.
func (g Generator[V]) Filter(keep func(V) bool) Generator[V] {
	return Custom(func(t *T) V {
		var v V
		if !t.until(func() bool { v = g.value(t); return keep(v) }) {
			t.giveUp()
		}
		return v
	})
}

// shown is a value in Go's syntax, with every odd character of a string escaped.
func shown(v any) string {
	if r := reflect.ValueOf(v); r.Kind() == reflect.String {
		return fmt.Sprintf("%+q", r.String())
	}
	return fmt.Sprintf("%#v", v)
}

// Custom makes what f returns, which draws from the run that it is given.
func Custom[V any](f func(*T) V) Generator[V] { return Generator[V]{f} }

// Just makes v and nothing else.
func Just[V any](v V) Generator[V] { return Custom(func(*T) V { return v }) }

// Bool makes false as often as true; false is simpler.
func Bool() Generator[bool] {
	return Custom(func(t *T) bool { return t.choose(1, even(1)) == 1 })
}

// SampledFrom makes each of values, of which there must be one, as often as the others;
// the first is the simplest.
func SampledFrom[V any](values []V) Generator[V] {
	if len(values) == 0 {
		panic("draw: SampledFrom has no values")
	}
	last := uint64(len(values) - 1)
	return Custom(func(t *T) V { return values[t.choose(last, even(last))] })
}

// OneOf makes a value of one of generators, of each as often; the first is the simplest.
func OneOf[V any](generators ...Generator[V]) Generator[V] {
	one := SampledFrom(generators)
	return Custom(func(t *T) V { return one.value(t).value(t) })
}

// whole are the types of whole numbers.
type whole interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Integer makes any number of its type, as Range does.
func Integer[I whole]() Generator[I] {
	var zero I
	least, most := zero, ^zero
	if most < 0 { // of a type with a sign
		most = I(uint64(1)<<(reflect.TypeFor[I]().Bits()-1) - 1)
		least = -most - 1
	}
	return Range(least, most)
}

// Range makes numbers from least to most, both among them, and the two more often than
// others; in a wide range also the small, and those beside a power of two. The nearer to
// zero the simpler, a positive one before its negative.
func Range[I whole](least, most I) Generator[I] {
	if least > most {
		panic(fmt.Sprintf("draw: the range is from %d to %d", least, most))
	}
	wide := uint64(most) - uint64(least)
	choice := edged(wide, nearer(least, most))
	return Custom(func(t *T) I { return nearest(least, most, t.choose(wide, choice)) })
}

// nearest is the number that has c others of the range nearer to zero.
func nearest[I whole](least, most I, c uint64) I {
	switch {
	case least > 0:
		return least + I(c)
	case most < 0:
		return most - I(c)
	}
	below, above := -uint64(least), uint64(most)
	both := min(below, above) // so many have their negative in the range
	switch {
	case c > 2*both && above > below:
		return I(c - both)
	case c > 2*both:
		return I(-(c - both))
	case c%2 == 1:
		return I(c/2 + 1)
	}
	return I(-(c / 2))
}

// nearer is the choice that makes the end of the range that is nearer to zero, where zero
// lies within.
func nearer[I whole](least, most I) uint64 {
	below, above := -uint64(least), uint64(most)
	switch {
	case least >= 0 || most <= 0:
		return 0
	case above <= below:
		return 2*above - 1
	}
	return 2 * below
}

// even makes each choice up to most as often.
func even(most uint64) func(*rand.Rand) uint64 {
	return func(r *rand.Rand) uint64 {
		if most+1 == 0 {
			return r.Uint64()
		}
		return r.Uint64N(most + 1)
	}
}

// edged makes each choice up to most as often, but for the two ends and more of them, and
// in a wide range for the small ones and those beside a power of two.
func edged(most uint64, more ...uint64) func(*rand.Rand) uint64 {
	const wide = 32
	ends := append([]uint64{0, most}, more...)
	flat := even(most)
	return func(r *rand.Rand) uint64 {
		switch n := r.IntN(32); {
		case n < len(ends):
			return ends[n]
		case most < wide || n < 16:
			return flat(r)
		case n < 18:
			return most - r.Uint64N(3)
		case n < 22:
			return min(most, uint64(1)<<r.IntN(bits.Len64(most))-r.Uint64N(2))
		}
		return min(most, r.Uint64()>>(64-bits.Len64(most)+r.IntN(bits.Len64(most))))
	}
}
