package sandkeeper_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
)

// levels are slog's methods, by the place of the first key.
var levels = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3,
}

// TestLogsHaveFixedKeys: queries and alarms of others rest on them. Every key that core
// and functions log is in the list of docs/metrics.md, and no other is.
func TestLogsHaveFixedKeys(t *testing.T) {
	listed := map[string]bool{}
	for _, k := range metrics.LogKeys {
		listed[k.Name] = false
	}
	for _, pattern := range []string{"internal/core/*.go", "internal/metrics/*.go", "functions/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if testFile(file) {
				continue
			}
			for _, key := range logKeys(t, file) {
				if _, ok := listed[key]; !ok {
					t.Errorf("%s logs the key %q, which metrics.LogKeys does not list", file, key)
				}
				listed[key] = true
			}
		}
	}
	for key, used := range listed {
		if !used {
			t.Errorf("nothing logs the key %q", key)
		}
	}
}

// logKeys are the keys of a file's log calls, and of what is appended to them.
func logKeys(t *testing.T, file string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			method, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || levels[method.Sel.Name] == 0 || !isLogger(method.X) || len(n.Args) < levels[method.Sel.Name] {
				return true
			}
			keys = append(keys, everySecond(n.Args[levels[method.Sel.Name]:])...)
		case *ast.CompositeLit: // []any{"key", value, …}
			if array, ok := n.Type.(*ast.ArrayType); ok && types(array.Elt) == "any" {
				keys = append(keys, everySecond(n.Elts)...)
			}
		}
		return true
	})
	return keys
}

// isLogger goes by the names that loggers have here.
func isLogger(x ast.Expr) bool {
	if call, ok := x.(*ast.CallExpr); ok {
		x = call.Fun
	}
	return slices.Contains([]string{"log", "Log", "Logger"}, types(x))
}

// types is the last name of an expression.
func types(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

func everySecond(args []ast.Expr) []string {
	var keys []string
	for i := 0; i < len(args); i += 2 {
		if literal, ok := args[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			key, err := strconv.Unquote(literal.Value)
			if err == nil && !strings.Contains(key, " ") {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
