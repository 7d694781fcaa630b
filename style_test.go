package sandkeeper_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The bars of CONTRIBUTING.md for functions, in lines from the word func to its last brace.
const (
	longestFunction = 80
	ninthOfTen      = 40
	halfOfAll       = 12
	mostParameters  = 4 // beside a context and a test
)

// sourceFile is a Go file that somebody has written.
type sourceFile struct {
	path string
	tree *ast.File
	set  *token.FileSet
}

// sourceFiles reads every Go file of the tree, those of infra too.
func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	set := token.NewFileSet()
	var files []sourceFile
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != "." || slices.Contains([]string{"node_modules", "dist", "cdk.out", "testdata"}, entry.Name())):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		tree, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err == nil && !ast.IsGenerated(tree) {
			files = append(files, sourceFile{path, tree, set})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("read %d files only", len(files))
	}
	return files
}

func (f sourceFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// functions gives out the functions of a file that have a body.
func (f sourceFile) functions(yield func(*ast.FuncDecl) bool) {
	for _, d := range f.tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && !yield(fn) {
			return
		}
	}
}

// TestFunctionsAreShort holds the bars: half of the functions, nine in ten, and all.
func TestFunctionsAreShort(t *testing.T) {
	var lengths []int
	for _, f := range sourceFiles(t) {
		for fn := range f.functions {
			begin, end := f.set.Position(fn.Pos()).Line, f.set.Position(fn.End()).Line
			lines := end - begin + 1
			if lines > longestFunction {
				t.Errorf("%s:%d: %s has %d lines, want at most %d", f.path, begin, fn.Name.Name, lines, longestFunction)
			}
			if !f.test() {
				lengths = append(lengths, lines)
			}
		}
	}
	slices.Sort(lengths)
	half, ninth, n := lengths[len(lengths)/2], lengths[len(lengths)*9/10], len(lengths)
	t.Logf("%d functions outside tests: half within %d lines, nine in ten within %d", n, half, ninth)
	if half > halfOfAll || ninth > ninthOfTen {
		t.Errorf("of %d functions half have up to %d lines and nine in ten up to %d, want %d and %d", n, half, ninth, halfOfAll, ninthOfTen)
	}
}

// TestManyParametersAreAStruct: what goes together has one name.
func TestManyParametersAreAStruct(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue // many a fake has the parameters of what it stands for
		}
		for fn := range f.functions {
			if n := parameters(fn.Type.Params); n > mostParameters {
				t.Errorf("%s: %s has %d parameters, want at most %d", f.set.Position(fn.Pos()), fn.Name.Name, n, mostParameters)
			}
		}
	}
}

// parameters counts them, without a context or a test in front.
func parameters(list *ast.FieldList) int {
	n := 0
	for _, field := range list.List {
		if !slices.Contains([]string{"context.Context", "testing.T", "testing.TB", "draw.T"}, typeName(field.Type)) {
			n += max(1, len(field.Names))
		}
	}
	return n
}

// typeName is a type as it is written, without a pointer's star.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	}
	return ""
}

// byConvention are methods whose contract is that of the interface they are for.
var byConvention = []string{"Error", "Unwrap", "String"}

// TestEveryExportedNameHasItsContract: what a package gives away, it says what it is.
func TestEveryExportedNameHasItsContract(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		for _, d := range f.tree.Decls {
			for _, name := range uncommented(d) {
				t.Errorf("%s: %s has no comment", f.set.Position(d.Pos()), name)
			}
		}
	}
}

// uncommented are the exported names of a declaration that nothing is said of.
func uncommented(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		ours := d.Recv == nil || ast.IsExported(typeName(d.Recv.List[0].Type))
		if ours && d.Name.IsExported() && d.Doc == nil && !slices.Contains(byConvention, d.Name.Name) {
			return []string{d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, s := range d.Specs {
			names = append(names, uncommentedSpec(d, s)...)
		}
		return names
	}
	return nil
}

func uncommentedSpec(d *ast.GenDecl, s ast.Spec) []string {
	var names []string
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
			names = append(names, s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				names = append(names, n.Name)
			}
		}
	}
	return names
}

// public are the packages that code outside this repository imports.
var public = []string{"client", "client/inprocess", "infra/sandkeeper"}

// TestAStrangerCanNameWhatIsPublic: who may not import internal packages cannot name their
// types, so that a public package has an alias for each that it takes or gives.
func TestAStrangerCanNameWhatIsPublic(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() || !slices.Contains(public, filepath.ToSlash(filepath.Dir(f.path))) {
			continue
		}
		ours := f.internalNames()
		for _, d := range f.tree.Decls {
			for part := range exposed(d) {
				ast.Inspect(part, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(ours, typeName(s.X)) {
						t.Errorf("%s: %s is not a stranger's to name", f.set.Position(s.Pos()), typeName(s))
					}
					return true
				})
			}
		}
	}
}

// internalNames are by what names a file knows internal packages.
func (f sourceFile) internalNames() []string {
	var found []string
	for _, i := range f.tree.Imports {
		if path := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(path, module+"/internal/") {
			name := filepath.Base(path)
			if i.Name != nil {
				name = i.Name.Name
			}
			found = append(found, name)
		}
	}
	return found
}

// exposed gives out what of a declaration its users must be able to name: the parameters
// and results of what is exported, and the types of exported fields.
func exposed(d ast.Decl) func(yield func(ast.Node) bool) {
	return func(yield func(ast.Node) bool) {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(typeName(d.Recv.List[0].Type))) {
				yield(d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				one, ok := s.(*ast.TypeSpec)
				if !ok || !one.Name.IsExported() || one.Assign.IsValid() {
					continue
				}
				if !exposedFields(one.Type, yield) {
					return
				}
			}
		}
	}
}

func exposedFields(e ast.Expr, yield func(ast.Node) bool) bool {
	s, ok := e.(*ast.StructType)
	if !ok {
		return yield(e)
	}
	for _, field := range s.Fields.List {
		hidden := len(field.Names) > 0 && !slices.ContainsFunc(field.Names, func(n *ast.Ident) bool { return n.IsExported() })
		if !hidden && !yield(field.Type) {
			return false
		}
	}
	return true
}
