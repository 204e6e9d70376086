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
	maxMethods     = 25 // of one type, promoted ones included
	maxSchemaTypes = 30 // exported types of one package below schema
)

// TestReceivers rejects a type with more than 25 methods: it combines more than
// one idea. Embedding does not hide methods.
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

// receivers counts the methods of each type, keyed "folder.Type": those that it declares
// or, if there are more, the exported ones of an exported type, with those that embedded
// types of this module promote. Types of tests count only what they declare.
func receivers(t *testing.T, sources map[string]string) map[string]int {
	t.Helper()
	methods, embedded := map[string]map[string]bool{}, map[string][]string{}
	eachFile(t, sources, func(folder string, file *ast.File) {
		imported := imports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					add(methods, typeName(folder, nil, d.Recv.List[0].Type), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						name := folder + "." + s.Name.Name
						embedded[name] = append(embedded[name], embeddedTypes(folder, imported, s.Type)...)
						if i, ok := s.Type.(*ast.InterfaceType); ok {
							for _, m := range i.Methods.List {
								for _, n := range m.Names {
									add(methods, name, n.Name)
								}
							}
						}
					}
				}
			}
		}
	})
	count := map[string]int{}
	for name := range embedded {
		count[name] = len(methods[name])
		if _, short, _ := strings.Cut(path.Base(name), "."); ast.IsExported(short) && !within(name, "test") {
			set := map[string]bool{}
			promote(set, name, methods, embedded, map[string]bool{})
			count[name] = max(count[name], len(set))
		}
	}
	return count
}

// promote adds the exported methods of a type and of the types it embeds.
func promote(set map[string]bool, name string, methods map[string]map[string]bool, embedded map[string][]string, seen map[string]bool) {
	if seen[name] {
		return
	}
	seen[name] = true
	for m := range methods[name] {
		if ast.IsExported(m) {
			set[m] = true
		}
	}
	for _, e := range embedded[name] {
		promote(set, e, methods, embedded, seen)
	}
}

func add(methods map[string]map[string]bool, name, method string) {
	if methods[name] == nil {
		methods[name] = map[string]bool{}
	}
	methods[name][method] = true
}

// embeddedTypes returns the types of this module that a struct or interface embeds.
func embeddedTypes(folder string, imported map[string]string, x ast.Expr) (names []string) {
	var fields *ast.FieldList
	switch x := x.(type) {
	case *ast.StructType:
		fields = x.Fields
	case *ast.InterfaceType:
		fields = x.Methods
	default:
		return nil
	}
	for _, f := range fields.List {
		if name := typeName(folder, imported, f.Type); len(f.Names) == 0 && name != "" {
			names = append(names, name)
		}
	}
	return names
}

// imports returns the folders of this module that a file imports, by name.
func imports(file *ast.File) map[string]string {
	folders := map[string]string{}
	for _, i := range file.Imports {
		folder, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
		if !ours {
			continue
		}
		name := path.Base(folder)
		if i.Name != nil {
			name = i.Name.Name
		}
		folders[name] = folder
	}
	return folders
}

// typeName returns "folder.Type" of a type of this module, without pointer and type
// arguments, otherwise "".
func typeName(folder string, imported map[string]string, x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(folder, imported, x.X)
	case *ast.IndexExpr:
		return typeName(folder, imported, x.X)
	case *ast.IndexListExpr:
		return typeName(folder, imported, x.X)
	case *ast.Ident:
		return folder + "." + x.Name
	case *ast.SelectorExpr:
		if p, ok := x.X.(*ast.Ident); ok && imported[p.Name] != "" {
			return imported[p.Name] + "." + x.Sel.Name
		}
	}
	return ""
}

// schemaTypes counts the exported types of each package below schema.
func schemaTypes(t *testing.T, sources map[string]string) map[string]int {
	t.Helper()
	count := map[string]int{}
	eachFile(t, sources, func(folder string, file *ast.File) {
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE || !within(folder, "schema") {
				continue
			}
			for _, spec := range g.Specs {
				if spec.(*ast.TypeSpec).Name.IsExported() {
					count[folder]++
				}
			}
		}
	})
	return count
}

// eachFile parses every file and calls f for it.
func eachFile(t *testing.T, sources map[string]string, f func(folder string, file *ast.File)) {
	t.Helper()
	for name, text := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		f(path.Dir(name), file)
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
	types := numbered(maxSchemaTypes+1, "type T%[1]d int\ntype t%[1]d int\n")
	sources := map[string]string{
		"internal/x/a.go":    "package x\ntype Large[K any] struct{}\n" + numbered(maxMethods+1, "func (s *Large[K]) m%d() {}\n"),
		"schema/wire/a.go":   "package wire\n" + types,
		"schema/wire/b.go":   "package wire\ntype ( A int; B int )\n",
		"schema/task/a.go":   "package task\ntype A int\n",
		"activities/type.go": "package activities\n" + types,
		"internal/y/a.go": "package y\nimport \"" + module + "/internal/x\"\ntype All struct { *Part; x.Other; p Part }\n" +
			"type Part struct{}\ntype all struct { *All }\n" + numbered(20, "func (Part) P%d() {}\n"),
		"internal/x/b.go": "package x\nimport \"io\"\ntype Other interface { io.Reader; more }\ntype more interface {\n" + numbered(6, "M%d()\n") + "}\n",
	}
	got := receivers(t, sources)
	assert.Equal(t, []string{"internal/x.Large has 26 methods, more than 25", "internal/y.All has 26 methods, more than 25"},
		violations(got, maxMethods, "methods"))
	assert.Equal(t, []string{"schema/wire has 33 exported types, more than 30"},
		violations(schemaTypes(t, sources), maxSchemaTypes, "exported types"))
}

// numbered repeats a line with the numbers from 0.
func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}
