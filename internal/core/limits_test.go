package core_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
)

// TestLimitsRelations breaks one relation at a time.
func TestLimitsRelations(t *testing.T) {
	if err := core.DefaultLimits.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*core.Limits){
		"must be above 0 and within the account's 40":       func(l *core.Limits) { l.ProbeRate = 34 },
		"must outlive the run budget":                       func(l *core.Limits) { l.RunBudget = l.ClaimLease },
		"shorter than the run TTL":                          func(l *core.Limits) { l.RunTTL = l.ClaimLease },
		"the last run taken must fit":                       func(l *core.Limits) { l.NewRunsFor = l.SweepTimeout - l.RunBudget - l.StopGrace },
		"one question for a capture":                        func(l *core.Limits) { l.CaptureCall = l.ReclaimTimeout },
		"a spend cap must be from 0":                        func(l *core.Limits) { l.TenantSpendCap = -1 },
		"a spend cap must be from 0 to 1000000":             func(l *core.Limits) { l.RunSpendCap = core.MostDollars + 1 },
		"15 minutes at most":                                func(l *core.Limits) { l.SweepTimeout = 15*time.Minute + 1 },
		"a termination must fit into one probe call":        func(l *core.Limits) { l.ProbeTimeout = l.StopGrace },
		"must make somebody look sooner":                    func(l *core.Limits) { l.HintLapse = l.Attachment },
		"a launch must be over before":                      func(l *core.Limits) { l.LaunchLag = l.LaunchWindow },
		"the first backoff must not exceed the last":        func(l *core.Limits) { l.ReclaimBackoff = l.ReclaimBackoffMax + 1 },
		"a page must fit":                                   func(l *core.Limits) { l.Page = 4<<20 + 1 },
		"a probe must not carry more than a page":           func(l *core.Limits) { l.Page = l.ProbeRest - 1 },
		"a probe batch must fit":                            func(l *core.Limits) { l.ProbeBatch = 1000 },
		"an inline segment must fit into an item of 400 KB": func(l *core.Limits) { l.InlineSegment = 300<<10 + 1 },
	} {
		limits := core.DefaultLimits
		change(&limits)
		if err := limits.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("validate: %v, want a word of %q", err, want)
		}
	}
}

// TestEveryLimitIsPositive sets each limit to zero, one at a time. A spend cap of zero is
// none.
func TestEveryLimitIsPositive(t *testing.T) {
	fields := reflect.TypeFor[core.Limits]()
	for field := range fields.Fields() {
		if field.Type == reflect.TypeFor[core.Dollars]() {
			continue
		}
		limits := core.DefaultLimits
		reflect.ValueOf(&limits).Elem().FieldByIndex(field.Index).SetZero()
		if err := limits.Validate(); err == nil {
			t.Errorf("validate: nothing said of %s = 0", field.Name)
		}
	}
}

// TestWorkspaceHash: secrets do not count, the order of members does not, everything
// else does.
func TestWorkspaceHash(t *testing.T) {
	workspace := func(change func(w map[string]any)) map[string]any {
		w := map[string]any{"source": map[string]any{"url": "u", "ref": "main"}, "setup": []any{"a", "b"}, "secrets": map[string]any{"A": 1}}
		if change != nil {
			change(w)
		}
		return w
	}
	hash := func(w map[string]any) string {
		h, err := core.WorkspaceHash(w)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	base := hash(workspace(nil))
	for what, c := range map[string]struct {
		w    map[string]any
		same bool
	}{
		"another secret":    {workspace(func(w map[string]any) { w["secrets"] = map[string]any{"B": 2} }), true},
		"no secrets":        {workspace(func(w map[string]any) { delete(w, "secrets") }), true},
		"another ref":       {workspace(func(w map[string]any) { w["source"] = map[string]any{"url": "u", "ref": "next"} }), false},
		"another order":     {workspace(func(w map[string]any) { w["setup"] = []any{"b", "a"} }), false},
		"one more member":   {workspace(func(w map[string]any) { w["plugins"] = []any{} }), false},
		"a secret deeper":   {workspace(func(w map[string]any) { w["source"] = map[string]any{"url": "u", "ref": "main", "secrets": 1} }), false},
		"an empty one":      {map[string]any{}, false},
		"no workspace":      {nil, false},
		"secrets, no more":  {map[string]any{"secrets": 1}, false},
		"the same, written": {workspace(nil), true},
	} {
		if same := hash(c.w) == base; same != c.same {
			t.Errorf("%s: same %t, want %t", what, same, c.same)
		}
	}
	if hash(map[string]any{"secrets": 1}) != hash(map[string]any{}) || hash(nil) == hash(map[string]any{}) {
		t.Error("an absent workspace and one that has nothing but secrets are two things")
	}
	w := workspace(nil)
	if hash(w); w["secrets"] == nil {
		t.Error("hashing took the secrets out of the caller's workspace")
	}
	if _, err := core.WorkspaceHash(map[string]any{"f": func() {}}); err == nil {
		t.Error("hashed what JSON cannot say")
	}
}

// texts are ids as a hostile or careless caller writes them.
var (
	piece = draw.SampledFrom([]string{"", "\xff", "\xfe", "a", "A", "_", "_5f", "\"", "\\", ",", ":", "#", "/", "\n",
		"é", "e\u0301", "\u2028", "<", "\ufffd", "\x00"})
	texts = draw.Custom(func(t *draw.T) string {
		return strings.Join(draw.SliceOfN(piece, 0, 4).Draw(t, "pieces"), "")
	})
)

// TestSandboxKeysAreOfOneMaterial: two materials share a key only if they are the
// same in every member (I16).
func TestSandboxKeysAreOfOneMaterial(t *testing.T) {
	materials := draw.Custom(func(t *draw.T) core.KeyMaterial {
		return core.KeyMaterial{
			Provider: texts.Draw(t, "provider"), Definition: texts.Draw(t, "definition"), Tenant: core.TenantID(texts.Draw(t, "tenant")),
			Thread: core.ThreadID(texts.Draw(t, "thread")), Run: core.RunID(texts.Draw(t, "run")), WorkspaceHash: texts.Draw(t, "workspace"),
		}
	})
	for _, tenants := range [][2]core.TenantID{{"\xff", "\xfe"}, {"\xff", "\ufffd"}, {"é", "e\u0301"}, {"_", "_5f"}, {"a", "a\n"}} {
		a, b := core.KeyMaterial{Tenant: tenants[0]}, core.KeyMaterial{Tenant: tenants[1]}
		if a.Key() == b.Key() {
			t.Errorf("tenants %+q and %+q share a key", a.Tenant, b.Tenant)
		}
	}
	draw.Check(t, func(t *draw.T) {
		a, b := materials.Draw(t, "a"), materials.Draw(t, "b")
		if draw.Bool().Draw(t, "a tenant's last piece apart") {
			b = a
			a.Tenant += core.TenantID(piece.Draw(t, "of a"))
			b.Tenant += core.TenantID(piece.Draw(t, "of b"))
		}
		if (a == b) != (a.Key() == b.Key()) {
			t.Fatalf("same material %t, same key %t: %+q and %+q", a == b, a.Key() == b.Key(), a, b)
		}
	})
}

// TestKeyTokenIsInjective: no two ids share a token, and no token holds a separator
// of store keys.
func TestKeyTokenIsInjective(t *testing.T) {
	draw.Check(t, func(t *draw.T) {
		a := draw.OneOf(texts, draw.AnyString()).Draw(t, "a")
		b := draw.OneOf(texts, draw.AnyString()).Draw(t, "b")
		checkToken(t, a)
		checkToken(t, b)
		if (a == b) != (core.KeyToken(a) == core.KeyToken(b)) {
			t.Fatalf("%q and %q have the tokens %q and %q", a, b, core.KeyToken(a), core.KeyToken(b))
		}
	})
}

// FuzzKeyToken reads each token back: what can be read back is injective.
func FuzzKeyToken(f *testing.F) {
	for _, id := range []string{"", "a/b", "a_2fb", "_", "%", "é", "\xff", "CON", strings.Repeat("x", 300)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) { checkToken(t, id) })
}

func checkToken(t interface{ Fatalf(string, ...any) }, id string) {
	token := core.KeyToken(id)
	var back strings.Builder
	for rest := token; rest != ""; {
		if rest[0] != '_' {
			back.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		var c byte
		if n, err := fmt.Sscanf(rest, "_%02x", &c); n != 1 || err != nil {
			t.Fatalf("token %q of %q: %v", token, id, err)
		}
		back.WriteByte(c)
		rest = rest[3:]
	}
	if back.String() != id {
		t.Fatalf("token %q of %q reads as %q", token, id, back.String())
	}
	if strings.ContainsAny(token, "#/ \x00") {
		t.Fatalf("token %q of %q holds a separator", token, id)
	}
}
