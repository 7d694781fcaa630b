package coretest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// declared lists core's types that have all the given methods, by the type of the
// parameter that apply takes.
func declared(t *testing.T, apply string) map[string][]string {
	t.Helper()
	files := token.NewFileSet()
	byParameter := map[string][]string{}
	sources, err := fs.Glob(os.DirFS(".."), "*.go")
	must(t, err)
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, "../"+name, nil, 0)
		must(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != apply || len(f.Type.Params.List) != 1 {
				continue
			}
			receiver, ok := f.Recv.List[0].Type.(*ast.Ident)
			parameter, plain := f.Type.Params.List[0].Type.(*ast.Ident)
			if ok && plain {
				byParameter[parameter.Name] = append(byParameter[parameter.Name], receiver.Name)
			}
		}
	}
	for _, list := range byParameter {
		slices.Sort(list)
	}
	return byParameter
}

func TestEveryTransitionOfCoreIsInATable(t *testing.T) {
	got := declared(t, "Apply")
	want := map[string][]string{
		"Run":       slices.Sorted(maps.Keys(runTransitions)),
		"Sandbox":   slices.Sorted(maps.Keys(sandboxTransitions)),
		"Control":   slices.Sorted(maps.Keys(controlTransitions)),
		"LedgerRow": slices.Sorted(maps.Keys(ledgerTransitions)),
		"Thread":    slices.Sorted(maps.Keys(threadTransitions)),
	}
	equal(t, "types with Apply in core", got, want)
}

func TestEveryTransactionOfCoreIsChecked(t *testing.T) {
	got := declared(t, "ApplyRow")
	equal(t, "types with ApplyRow in core", got, map[string][]string{"LedgerRow": {"Condemn", "Launched", "MoveDebt"}})
}
