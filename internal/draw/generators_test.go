package draw_test

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// many is a number of draws in which what is likely is met.
const many = 4000

// examples are that many of a generator's values.
func examples[V any](g draw.Generator[V], yield func(V)) {
	for seed := range uint64(many) {
		yield(g.Example(seed))
	}
}

type number interface {
	~int | ~int8 | ~int64 | ~uint | ~uint8 | ~uint32 | ~uint64
}

// withinBounds checks that numbers keep to their bounds and meet both.
func withinBounds[I number](least, most I, g draw.Generator[I]) func(t *testing.T) {
	return func(t *testing.T) {
		met := map[I]int{}
		examples(g, func(n I) {
			if n < least || n > most {
				t.Fatalf("drew %d, want %d to %d", n, least, most)
			}
			met[n]++
		})
		for _, edge := range []I{least, most} {
			if met[edge] < many/100 {
				t.Errorf("drew %d in %d of %d, want it more often", edge, met[edge], many)
			}
		}
		if least <= 0 && 0 <= most && met[0] < many/100 {
			t.Errorf("drew 0 in %d of %d, want it more often", met[0], many)
		}
	}
}

func TestNumbersKeepTheirBounds(t *testing.T) {
	t.Run("int", withinBounds(math.MinInt, math.MaxInt, draw.Integer[int]()))
	t.Run("int8", withinBounds(math.MinInt8, math.MaxInt8, draw.Integer[int8]()))
	t.Run("int64", withinBounds(math.MinInt64, math.MaxInt64, draw.Integer[int64]()))
	t.Run("uint", withinBounds(0, math.MaxUint, draw.Integer[uint]()))
	t.Run("byte", withinBounds(0, math.MaxUint8, draw.Integer[byte]()))
	t.Run("uint32", withinBounds(0, math.MaxUint32, draw.Integer[uint32]()))
	t.Run("uint64", withinBounds(0, math.MaxUint64, draw.Integer[uint64]()))
	t.Run("one number", withinBounds(5, 5, draw.Range(5, 5)))
	t.Run("a few", withinBounds(-1, 2, draw.Range(-1, 2)))
	t.Run("mostly negative", withinBounds(-1_000_000, 7, draw.Range(-1_000_000, 7)))
	t.Run("all negative", withinBounds(-9, -3, draw.Range(-9, -3)))
	t.Run("all positive", withinBounds(3, 300, draw.Range(3, 300)))
	t.Run("the lowest of a type", withinBounds[int8](-128, 0, draw.Range[int8](-128, 0)))
	t.Run("wide and unsigned", withinBounds[uint64](9, math.MaxUint64, draw.Range[uint64](9, math.MaxUint64)))
}

// TestEveryNumberOfARangeIsDrawn, none of them twice for two choices.
func TestEveryNumberOfARangeIsDrawn(t *testing.T) {
	for _, bounds := range [][2]int8{{-3, 10}, {-10, 3}, {-6, 6}, {0, 12}, {-12, 0}, {4, 16}, {-128, -116}, {115, 127}} {
		met := map[int8]bool{}
		examples(draw.Range(bounds[0], bounds[1]), func(n int8) { met[n] = true })
		if want := int(bounds[1]) - int(bounds[0]) + 1; len(met) != want {
			t.Errorf("from %d to %d drew %d numbers, want %d", bounds[0], bounds[1], len(met), want)
		}
	}
}

func TestListsKeepTheirBounds(t *testing.T) {
	lengths, repeated := map[int]int{}, 0
	examples(draw.SliceOfN(draw.Integer[uint64](), 2, 9), func(list []uint64) {
		lengths[len(list)]++
		met := map[uint64]bool{}
		for _, n := range list {
			met[n] = true
		}
		if len(met) < len(list) {
			repeated++
		}
	})
	for n := range lengths {
		if n < 2 || n > 9 {
			t.Errorf("drew a list of %d, want 2 to 9", n)
		}
	}
	if len(lengths) != 8 || repeated < many/10 {
		t.Errorf("drew the lengths %v and in %d of %d lists a value twice", lengths, repeated, many)
	}
	empty := 0
	examples(draw.SliceOf(draw.Bool()), func(list []bool) {
		if list == nil {
			t.Error("drew nil")
		}
		if len(list) == 0 {
			empty++
		}
	})
	if empty < many/100 {
		t.Errorf("drew no items in %d of %d, want it more often", empty, many)
	}
	small := draw.Range(0, 3)
	examples(draw.SliceOfNDistinct(small, 1, 4), func(list []int) {
		met := map[int]bool{}
		for _, n := range list {
			met[n] = true
		}
		if len(met) != len(list) || len(list) < 1 || len(list) > 4 {
			t.Errorf("drew %v, want one to four different numbers", list)
		}
	})
	examples(draw.MapOfN(small, draw.Bool(), 2, 4), func(m map[int]bool) {
		if len(m) < 2 || len(m) > 4 {
			t.Errorf("drew %v, want two to four keys", m)
		}
	})
	full := 0
	examples(draw.SliceOfNDistinct(small, 0, 9), func(list []int) {
		if len(list) == 4 {
			full++
		}
	})
	if full < many/3 {
		t.Errorf("drew all of four values in %d of %d, want it where more are wanted", full, many)
	}
}

func TestTextsAreOfTheirKind(t *testing.T) {
	met := map[string]int{}
	examples(draw.String(), func(s string) {
		if !utf8.ValidString(s) {
			t.Fatalf("drew %q, which is no UTF-8", s)
		}
		for _, r := range s + "\x01" {
			met[string(r)]++
		}
		if s == "" {
			met["empty"]++
		}
	})
	for _, want := range []string{"empty", "\x00", "\n", "a", "Z", "é", "\u0301", "\u2028", "\ufeff", "\ufffd", "\U0010ffff"} {
		if met[want] < many/100 {
			t.Errorf("drew %+q in %d of %d texts, want it more often", want, met[want], many)
		}
	}
	broken, whole := 0, 0
	examples(draw.AnyString(), func(s string) {
		if utf8.ValidString(s) {
			whole++
		} else {
			broken++
		}
	})
	if broken < many/10 || whole < many/10 {
		t.Errorf("drew %d texts of UTF-8 and %d others, want many of both", whole, broken)
	}
}

func TestStringMatchingMatches(t *testing.T) {
	for _, pattern := range []string{
		``, `abc`, `(?i)aKß`, `[a-c]{0,9}`, `[a-c.\-é]{1,3}`, `user\.[a-c]`, `(\.\./|/)?[a-z/]{1,5}`, `[^\x00]{1,12}`, `.*`, `(?s).+`, `^a+$`, `a|b|`, `(?:ab?){2,}`,
		`\w+ \d{3} \W\S\s`, `\bword\b`, `(?P<name>x)*?y`, `\p{Greek}+`, `[^a-z]`, `(?m)^a$\n^b$`, `[\x{d7ff}-\x{e000}]`, `a|`, `x{3}`, `\x{10ffff}`,
	} {
		whole := regexp.MustCompile(`\A(?:` + pattern + `)\z`)
		met := map[string]bool{}
		examples(draw.StringMatching(pattern), func(s string) {
			if !whole.MatchString(s) || !utf8.ValidString(s) {
				t.Fatalf("of %s drew %+q", pattern, s)
			}
			met[s] = true
		})
		if strings.ContainsAny(pattern, "[|*+") && len(met) < 2 {
			t.Errorf("of %s drew nothing but %v", pattern, met)
		}
	}
}

func TestChoicesAreAllMet(t *testing.T) {
	met := map[string]int{}
	either := draw.OneOf(draw.Just("just"), draw.SampledFrom([]string{"a", "b"}), draw.Custom(func(r *draw.T) string {
		return fmt.Sprint(draw.Bool().Draw(r, "bool"))
	}))
	examples(either, func(s string) { met[s]++ })
	if len(met) != 5 || met["just"] < many/4 || met["a"] < many/8 || met["true"] < many/8 || met["false"] < many/8 {
		t.Errorf("drew %v", met)
	}
	examples(draw.Range(0, 99).Filter(func(n int) bool { return n%2 == 1 }), func(n int) {
		if n%2 == 0 {
			t.Errorf("a filter for odd numbers lets %d pass", n)
		}
	})
}

func TestWhatCannotBeDrawnIsRefusedAtOnce(t *testing.T) {
	for name, make := range map[string]func(){
		"a range that ends before it begins":   func() { draw.Range(2, 1) },
		"none of no values":                    func() { draw.SampledFrom([]int{}) },
		"a list shorter than nothing":          func() { draw.SliceOfN(draw.Bool(), -1, 2) },
		"a list at most shorter than at least": func() { draw.SliceOfN(draw.Bool(), 3, 2) },
		"a pattern that is none":               func() { draw.StringMatching(`(`) },
		"a pattern that nothing matches":       func() { draw.StringMatching(`[^\x00-\x{10ffff}]`) },
		"an example that no filter lets pass":  func() { draw.Just(1).Filter(func(int) bool { return false }).Example(1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("was accepted")
				}
			}()
			make()
		})
	}
}
