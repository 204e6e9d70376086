package reference

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestAuditPage compares docs/reference/audit.md with schema/audit. -update rewrites the page.
func TestAuditPage(t *testing.T) {
	t.Parallel()
	checkPage(t, "audit.md", auditPage())
}

func auditPage() string {
	var b strings.Builder
	b.WriteString(`# Audit events

<!-- Generated from the source code. Run ./task gen. -->

Every change writes an audit event in its transaction. ` + "`gpuaas audit`" + ` lists the events, and ` + "`gpuaas audit --verify`" + ` checks their hash chains. Events
about a node are in the stream of the node, whose name is the node's ID. All others are in the stream ` + "`system`" + `.

| field | meaning |
| --- | --- |
| ` + "`stream`, `seq`" + ` | The stream and the number of the event in it, from 1 without gaps. |
| ` + "`at`" + ` | The time of the transaction, in UTC. |
| ` + "`actor`" + ` | The subject of the request, ` + "`node:ID`" + ` for an agent, ` + "`system`" + ` for a service, ` + "`unauthenticated`" + ` for a request without an identity. |
| ` + "`via`" + ` | ` + "`api` or `temporal`" + `: the interface of the request. Empty for agents and services. |
| ` + "`action`" + ` | One of the actions below. |
| ` + "`target`" + ` | What the event is about. |
| ` + "`result`" + ` | `)
	b.WriteString(codes(audit.Results()) + `. |
| ` + "`reason`" + ` | The reason of the request, of the park or of the error ([errors](errors.md)). |
| ` + "`correlation_id`, `operation_id`" + ` | The request and the operation that caused the event. |
| ` + "`detail`" + ` | More fields by name, as listed below. Which of them an event has depends on its result. |
| ` + "`prev_hash`, `hash`" + ` | The hash chain of the stream. |

With ` + "`-o json`" + `, an event also has the ` + "`host`" + ` of the node.
`)
	auditTable(&b, "Events of nodes", func(i audit.ActionInfo) bool { return !i.System && !isLifecycle(i.Action) })
	lifecycleTable(&b)
	auditTable(&b, "Events of the installation", func(i audit.ActionInfo) bool { return i.System })
	return b.String()
}

func auditTable(b *strings.Builder, title string, listed func(audit.ActionInfo) bool) {
	b.WriteString("\n## " + title + "\n\n| action | written when | target | detail |\n| --- | --- | --- | --- |\n")
	for _, i := range audit.Infos() {
		if !listed(i) {
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", i.Action, cell(i.When), i.Target, codes(i.Detail))
	}
}

// codes joins words as code.
func codes(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "`" + strings.Join(words, "`, `") + "`"
}

// lifecycleTable has the keys of the operations, which are the same for each, in one sentence.
func lifecycleTable(b *strings.Builder) {
	var rows string
	var operation []string
	for _, p := range lifecycle.All() {
		for _, i := range audit.Infos() {
			switch {
			case i.Action != audit.ActionName(p.Action):
			case p.Workflow == "":
				rows += fmt.Sprintf("| `%s` | %s | %s |\n", i.Action, i.When, codes(i.Detail))
			default:
				operation = i.Detail
				rows += fmt.Sprintf("| `%s` | %s | as above |\n", i.Action, i.When)
			}
		}
	}
	b.WriteString("\n## Lifecycle actions\n\nThe target is the node. The detail of an operation may have the keys " + codes(operation) + ".\n\n" +
		"| action | written when | detail |\n| --- | --- | --- |\n" + rows)
}

func isLifecycle(action string) bool {
	return slices.ContainsFunc(lifecycle.All(), func(p lifecycle.Plan) bool { return audit.ActionName(p.Action) == action })
}

// TestAuditActions: each action of schema/audit is described once, and the code that writes events uses no other.
func TestAuditActions(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for _, i := range audit.Infos() {
		require.False(t, described[i.Action], "%s is described twice", i.Action)
		require.NotEmpty(t, i.When)
		require.NotEmpty(t, i.Target)
		described[i.Action] = true
	}
	s := parseSource(t, root, "schema/audit")
	for name, value := range s.constants["schema/audit"] {
		lit, ok := value.(*ast.BasicLit)
		action := strings.Trim(fmt.Sprint(valueOf(lit, ok)), `"`)
		if group, _, found := strings.Cut(action, "."); found && slices.Contains([]string{"nodes", "tasks", "trust", "operations", "audit", "restore_mode",
			"skus", "templates", "recovery", "instances", "resources"}, group) {
			require.True(t, described[action], "audit.%s (%s) has no description", name, action)
		}
	}
}

func valueOf(lit *ast.BasicLit, ok bool) string {
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	return lit.Value
}

// TestAuditDetail: the keys of details that the store writes are those that schema/audit describes.
func TestAuditDetail(t *testing.T) {
	t.Parallel()
	described := map[string]bool{}
	for _, i := range audit.Infos() {
		for _, key := range i.Detail {
			described[strings.TrimSuffix(key, "*")] = true
		}
	}
	s := parseSource(t, root, "internal/store")
	written := detailKeys(s.files["internal/store"])
	for key := range written {
		require.True(t, described[key], "the store writes the detail %q, which schema/audit does not describe", key)
	}
	all := storeText(t)
	for key := range described {
		require.True(t, written[key] || strings.Contains(all, `"`+key+`"`) || strings.Contains(all, `"`+key+`" +`) || strings.Contains(all, `'`+key+`'`),
			"nothing writes the detail %q, which schema/audit describes", key)
	}
}

// storeText is the text of what writes audit events: the store, the queries and the migrations.
func storeText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"internal/store/*.go", "schema/queries/*.sql", "schema/migrations/*.sql"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, p := range paths {
			text, err := os.ReadFile(p)
			require.NoError(t, err)
			all.Write(text)
		}
	}
	return all.String()
}

// detailKeys returns the keys of the literals of type map[string]string, and of assignments to an element of detail or Detail,
// in functions.
func detailKeys(files []*ast.File) map[string]bool {
	keys := map[string]bool{}
	add := func(x ast.Expr) {
		if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			keys[strings.Trim(lit.Value, `"`)] = true
		}
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			if _, ok := decl.(*ast.FuncDecl); !ok {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					if isStringMap(n.Type) {
						for _, e := range n.Elts {
							add(e.(*ast.KeyValueExpr).Key)
						}
					}
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						if index, ok := left.(*ast.IndexExpr); ok && isDetail(index.X) {
							add(index.Index)
						}
					}
				}
				return true
			})
		}
	}
	return keys
}

func isStringMap(x ast.Expr) bool {
	m, ok := x.(*ast.MapType)
	if !ok {
		return false
	}
	key, ok1 := m.Key.(*ast.Ident)
	value, ok2 := m.Value.(*ast.Ident)
	return ok1 && ok2 && key.Name == "string" && value.Name == "string"
}

func isDetail(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "detail"
	case *ast.SelectorExpr:
		return x.Sel.Name == "Detail"
	}
	return false
}
