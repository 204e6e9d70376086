package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	maxMethods     = 25 // of one receiver type
	maxSchemaTypes = 30 // exported types of one package below schema
)

// TestReceivers rejects a type with more than 25 methods: it combines more than
// one idea.
func TestReceivers(t *testing.T) {
	t.Parallel()
	assert.Empty(t, violations(receivers(t, productFiles(t)), maxMethods, "methods"))
}

// TestSchemaTypes bounds the exported types of each package below schema.
func TestSchemaTypes(t *testing.T) {
	t.Parallel()
	assert.Empty(t, violations(schemaTypes(t, productFiles(t)), maxSchemaTypes, "exported types"))
}

// TestNoHiddenFields rejects exported fields tagged json:"-" in schema: a wire
// type must not carry internal state.
func TestNoHiddenFields(t *testing.T) {
	t.Parallel()
	for file, text := range productFiles(t) {
		if within(file, "schema") {
			assert.NotContains(t, text, "`json:\"-\"", "%s", file)
		}
	}
}

// productFiles returns the Go files that are neither tests nor generated.
func productFiles(t *testing.T) map[string]string {
	t.Helper()
	sources := map[string]string{}
	goFiles(t, func(path, text string) {
		if !strings.HasSuffix(path, "_test.go") {
			sources[path] = text
		}
	})
	return sources
}

// receivers counts the methods of each type, keyed "folder.Type".
func receivers(t *testing.T, sources map[string]string) map[string]int {
	t.Helper()
	count := map[string]int{}
	each(t, sources, func(folder string, d ast.Decl) {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			return
		}
		recv := f.Recv.List[0].Type
		if star, ok := recv.(*ast.StarExpr); ok {
			recv = star.X
		}
		switch x := recv.(type) {
		case *ast.IndexExpr:
			recv = x.X
		case *ast.IndexListExpr:
			recv = x.X
		}
		if name, ok := recv.(*ast.Ident); ok {
			count[folder+"."+name.Name]++
		}
	})
	return count
}

// schemaTypes counts the exported types of each package below schema.
func schemaTypes(t *testing.T, sources map[string]string) map[string]int {
	t.Helper()
	count := map[string]int{}
	each(t, sources, func(folder string, d ast.Decl) {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE || !within(folder, "schema") {
			return
		}
		for _, spec := range g.Specs {
			if spec.(*ast.TypeSpec).Name.IsExported() {
				count[folder]++
			}
		}
	})
	return count
}

// each calls f for every top-level declaration.
func each(t *testing.T, sources map[string]string, f func(folder string, d ast.Decl)) {
	t.Helper()
	for name, text := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f(path.Dir(name), d)
		}
	}
}

func violations(count map[string]int, limit int, what string) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if count[name] > limit {
			found = append(found, fmt.Sprintf("%s has %d %s, more than %d", name, count[name], what, limit))
		}
	}
	return found
}

func TestShapeReports(t *testing.T) {
	t.Parallel()
	var methods, types strings.Builder
	for i := range maxMethods + 1 {
		fmt.Fprintf(&methods, "func (s *Large[K]) m%d() {}\n", i)
	}
	for i := range maxSchemaTypes + 1 {
		fmt.Fprintf(&types, "type T%d int\ntype t%d int\n", i, i)
	}
	sources := map[string]string{
		"internal/x/a.go":    "package x\ntype Large[K any] struct{}\n" + methods.String(),
		"schema/wire/a.go":   "package wire\n" + types.String(),
		"schema/wire/b.go":   "package wire\ntype ( A int; B int )\n",
		"schema/task/a.go":   "package task\ntype A int\n",
		"activities/type.go": "package activities\n" + types.String(),
	}
	got := receivers(t, sources)
	assert.Equal(t, []string{"internal/x.Large has 26 methods, more than 25"}, violations(got, maxMethods, "methods"))
	assert.Equal(t, []string{"schema/wire has 33 exported types, more than 30"},
		violations(schemaTypes(t, sources), maxSchemaTypes, "exported types"))
}
