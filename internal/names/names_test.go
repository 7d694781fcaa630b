package names_test

import (
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

func TestEveryFunctionHasAnEnvironment(t *testing.T) {
	for _, f := range names.Functions {
		keys, ok := names.Env[f]
		if !ok || len(keys) == 0 {
			t.Errorf("function %s lists no environment", f)
		}
		sorted := slices.Clone(keys)
		slices.Sort(sorted)
		if len(slices.Compact(sorted)) != len(keys) {
			t.Errorf("function %s lists a key twice: %v", f, keys)
		}
	}
	if len(names.Env) != len(names.Functions) {
		t.Errorf("Env has %d functions, Functions has %d", len(names.Env), len(names.Functions))
	}
}

func TestOnlyWhatAFunctionReadsHasAListOfValues(t *testing.T) {
	for key, values := range names.Values {
		read := slices.ContainsFunc(names.Functions, func(f names.Function) bool { return slices.Contains(names.Env[f], key) })
		if !read || len(values) == 0 || slices.Contains(values, "") {
			t.Errorf("%s takes %q and is read: %v", key, values, read)
		}
	}
}

func TestOneAttributeHasOneTypeInATable(t *testing.T) {
	for _, table := range names.Tables {
		types := map[string]names.AttributeType{names.PK.Name: names.PK.Type, names.SK.Name: names.SK.Type}
		seen := map[string]bool{}
		for _, index := range table.Indexes {
			if seen[index.Name] {
				t.Errorf("table %s has two indexes named %s", table.Name, index.Name)
			}
			seen[index.Name] = true
			for _, a := range []names.Attribute{index.PK, index.SK} {
				if before, ok := types[a.Name]; ok && before != a.Type {
					t.Errorf("table %s: attribute %s is %s and %s", table.Name, a.Name, before, a.Type)
				}
				types[a.Name] = a.Type
			}
		}
	}
}
