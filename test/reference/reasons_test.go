package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gpuaas/gpuaas/"

// A reason is one that the source gives an error: its kind, the message and the next step, with … for
// what is computed. An empty field is computed as a whole.
type reason struct{ kind, reason, message, next string }

// A source is the code of the product: its files by folder, and its string constants.
type source struct {
	files     map[string][]*ast.File
	constants map[string]map[string]ast.Expr // by folder and name
}

func newSource() source {
	return source{map[string][]*ast.File{}, map[string]map[string]ast.Expr{}}
}

// parseSource reads the Go files of the folders, tests excluded.
func parseSource(t *testing.T, root string, folders ...string) source {
	t.Helper()
	s := newSource()
	for _, folder := range folders {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(file))
			if err != nil {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			s.add(filepath.ToSlash(dir), parsed)
			return nil
		}))
	}
	return s
}

func (s source) add(dir string, file *ast.File) {
	s.files[dir] = append(s.files[dir], file)
	if s.constants[dir] == nil {
		s.constants[dir] = map[string]ast.Expr{}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					s.constants[dir][name.Name] = spec.Values[i]
				}
			}
		}
		return true
	})
}

// A place is the file and the function of an expression.
type place struct {
	dir  string
	file *ast.File
	fn   *ast.FuncDecl
}

// parameter returns the index of the parameter that an expression names, -1 for any other.
func (p place) parameter(x ast.Expr) int {
	id, ok := x.(*ast.Ident)
	if !ok || p.fn == nil {
		return -1
	}
	i := 0
	for _, field := range p.fn.Type.Params.List {
		for _, name := range field.Names {
			if name.Name == id.Name {
				return i
			}
			i++
		}
	}
	return -1
}

// imported returns the folder of a package of this module that the file imports, "" for others.
func (p place) imported(name string) string {
	for _, spec := range p.file.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		local := path.Base(target)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if err == nil && local == name {
			if dir, ours := strings.CutPrefix(target, module); ours {
				return dir
			}
		}
	}
	return ""
}

// text returns the value of a string expression, with … for each part that is not constant.
func (s source) text(p place, x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(x.Value)
		if err == nil && x.Kind == token.STRING {
			return value
		}
	case *ast.Ident:
		if value, ok := s.constants[p.dir][x.Name]; ok && p.parameter(x) < 0 {
			return s.text(place{p.dir, p.file, nil}, value)
		}
	case *ast.SelectorExpr:
		if id, ok := x.X.(*ast.Ident); ok {
			dir := p.imported(id.Name)
			if value, ok := s.constants[dir][x.Sel.Name]; ok {
				return s.text(place{dir, s.files[dir][0], nil}, value)
			}
		}
	case *ast.BinaryExpr:
		return s.text(p, x.X) + s.text(p, x.Y)
	case *ast.CallExpr:
		if fn, ok := x.Fun.(*ast.Ident); ok && fn.Name == "string" {
			return s.text(p, x.Args[0])
		}
	}
	return "…"
}

// chain returns the calls of a method chain by name, and the call at its root.
func chain(call *ast.CallExpr) (methods map[string]*ast.CallExpr, first *ast.CallExpr) {
	methods = map[string]*ast.CallExpr{}
	for {
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return methods, call
		}
		inner, ok := sel.X.(*ast.CallExpr)
		if !ok {
			return methods, call
		}
		methods[sel.Sel.Name] = call
		call = inner
	}
}

// name returns the name of the function or method of a call.
func name(call *ast.CallExpr) string {
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		return fn.Sel.Name
	}
	return ""
}

// A helper is a function that makes an error with a reason, a kind or a message of its parameters.
// An index below 0 means that the text of the reason applies.
type helper struct {
	dir, name              string
	reason                 reason
	kind, code, says, todo int
}

// ofCall returns the reason of a method chain with WithReason, and the indexes of the parameters that it
// takes from its function.
func (s source) ofCall(p place, call *ast.CallExpr) (h helper, ok bool) {
	methods, first := chain(call)
	with := methods["WithReason"]
	if with == nil || len(with.Args) != 1 {
		return h, false
	}
	h = helper{dir: p.dir, kind: -1, code: -1, says: -1, todo: -1}
	if p.fn != nil {
		h.name = p.fn.Name.Name
	}
	h.reason.reason, h.code = s.text(p, with.Args[0]), p.parameter(with.Args[0])
	if next := methods["WithNext"]; next != nil {
		h.reason.next, h.todo = s.text(p, next.Args[0]), p.parameter(next.Args[0])
	}
	kind, message := 0, 1
	switch name(first) {
	case "NewError":
	case "Wrap":
		message = 2
	default: // a helper of its own
		return h, true
	}
	if len(first.Args) > message {
		h.reason.kind, h.kind = s.text(p, first.Args[kind]), p.parameter(first.Args[kind])
		h.reason.message, h.says = s.text(p, first.Args[message]), p.parameter(first.Args[message])
	}
	return h, true
}

// calls calls f for each outermost call of the source.
func (s source) calls(f func(p place, call *ast.CallExpr)) {
	for _, dir := range slices.Sorted(maps.Keys(s.files)) {
		for _, file := range s.files[dir] {
			for _, decl := range file.Decls {
				fn, _ := decl.(*ast.FuncDecl)
				seen := map[ast.Node]bool{}
				ast.Inspect(decl, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok || seen[call] {
						return true
					}
					methods, first := chain(call)
					for _, m := range methods {
						seen[m] = true
					}
					seen[first] = len(methods) > 0 && strings.HasPrefix(name(first), "NewError")
					f(place{dir, file, fn}, call)
					return true
				})
			}
		}
	}
}

// reasons returns what the source gives as reasons, helpers with a reason of their callers resolved.
func (s source) reasons() (found []reason) {
	var helpers []helper
	s.calls(func(p place, call *ast.CallExpr) {
		h, ok := s.ofCall(p, call)
		switch {
		case !ok:
		case h.code < 0 && h.kind < 0:
			found = append(found, h.reason)
		default:
			helpers = append(helpers, h)
		}
	})
	s.calls(func(p place, call *ast.CallExpr) {
		_, first := chain(call)
		for _, h := range helpers {
			if s.isCallOf(p, first, h) {
				found = append(found, s.apply(p, first, h))
			}
		}
	})
	return append(found, s.composites()...)
}

func (s source) isCallOf(p place, call *ast.CallExpr, h helper) bool {
	if name(call) != h.name || h.name == "" {
		return false
	}
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		if id, ok := sel.X.(*ast.Ident); ok && p.imported(id.Name) != "" {
			return p.imported(id.Name) == h.dir
		}
	}
	return p.dir == h.dir
}

// apply returns the reason of a helper with the arguments of a call.
func (s source) apply(p place, call *ast.CallExpr, h helper) reason {
	r := h.reason
	for _, field := range []struct {
		index int
		text  *string
	}{{h.kind, &r.kind}, {h.code, &r.reason}, {h.says, &r.message}, {h.todo, &r.next}} {
		if field.index >= 0 && field.index < len(call.Args) {
			*field.text = s.text(p, call.Args[field.index])
		}
	}
	return r
}

// composites returns the reasons of literals of schema.Error.
func (s source) composites() (found []reason) {
	for dir, files := range s.files {
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				fields := map[string]string{}
				for _, e := range lit.Elts {
					if pair, ok := e.(*ast.KeyValueExpr); ok {
						if key, ok := pair.Key.(*ast.Ident); ok {
							fields[key.Name] = s.text(place{dir, file, nil}, pair.Value)
						}
					}
				}
				if fields["Kind"] != "" && fields["Reason"] != "" && fields["Message"] != "" {
					found = append(found, reason{fields["Kind"], fields["Reason"], fields["Message"], fields["Next"]})
				}
				return true
			})
		}
	}
	return found
}

// plain replaces the verbs of a format.
func plain(format string) string {
	text := regexp.MustCompile(`%[-+#0-9.*]*[a-zA-Z]`).ReplaceAllString(format, "…")
	return regexp.MustCompile(`…(\s*…)+`).ReplaceAllString(strings.ReplaceAll(text, "%%", "%"), "…")
}
