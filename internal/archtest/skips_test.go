package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// skipping are the files that may skip a test, and why.
func skipping() map[string]string {
	return map[string]string{
		"test/testkit/need/need.go":                      "it fails in CI",
		"test/conformance/provider/":                     "a case does not apply to each provider; Run counts those that ran",
		"internal/providers/libvirt/conformance_test.go": "a real host runs a sample of the cases that the recorder runs",
		"test/e2e/fleet_rotation_test.go":                "it takes an hour, and a flag starts it",
	}
}

// TestSkips: only -short skips a test silently. A test that lacks something calls package need, which
// fails in CI.
func TestSkips(t *testing.T) {
	t.Parallel()
	goFiles(t, func(path, text string) {
		for file := range skipping() {
			if path == file || strings.HasSuffix(file, "/") && strings.HasPrefix(path, file) {
				return
			}
		}
		if strings.Contains(text, ".Skip") {
			assert.Empty(t, skips(t, path, text))
		}
	})
}

// skips lists the calls of Skip, Skipf and SkipNow outside an if whose condition calls testing.Short.
func skips(t *testing.T, path, text string) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, 0)
	require.NoError(t, err)
	var enclosing []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			enclosing = enclosing[:len(enclosing)-1]
			return true
		}
		enclosing = append(enclosing, n)
		if calls(n, "Skip", "Skipf", "SkipNow") && !slices.ContainsFunc(enclosing, shortOnly) {
			found = append(found, fmt.Sprintf("%s: use package need, so that the test fails in CI", set.Position(n.Pos())))
		}
		return true
	})
	return found
}

// shortOnly reports whether a statement is an if whose condition calls testing.Short.
func shortOnly(n ast.Node) (short bool) {
	s, ok := n.(*ast.IfStmt)
	if !ok {
		return false
	}
	ast.Inspect(s.Cond, func(n ast.Node) bool {
		short = short || calls(n, "Short")
		return true
	})
	return short
}

// calls reports whether a node is a call of a method or a function with one of the names.
func calls(n ast.Node, names ...string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(names, selector.Sel.Name)
}

func TestSkipsReports(t *testing.T) {
	t.Parallel()
	text := `package x
func f(t *testing.T, b bench) {
	if testing.Short() && os.Getenv("CI") != "true" {
		t.Skip("allowed")
	}
	if err != nil {
		t.Skipf("line 7")
	}
	b.t.SkipNow()
}`
	got := skips(t, "x.go", text)
	require.Len(t, got, 2)
	require.Contains(t, got[0], "x.go:7:")
	require.Contains(t, got[1], "x.go:9:")
}
