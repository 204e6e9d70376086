package reference

import (
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

var update = flag.Bool("update", false, "rewrite the pages in docs/reference")

const root = "../.."

// checkPage compares a page of docs/reference with its text, or rewrites it.
func checkPage(t *testing.T, name, want string) {
	t.Helper()
	page := filepath.Join(root, "docs", "reference", name)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
	}
	got, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "%s is not up to date: run ./task gen", page)
}

// TestErrorsPage compares docs/reference/errors.md with the source. -update rewrites the page.
func TestErrorsPage(t *testing.T) {
	t.Parallel()
	found := parseSource(t, root, "schema", "activities", "api", "internal", "worker", "workflows", "cli", "agent").reasons()
	for _, p := range machine.Problems() {
		found = append(found, reason{string(p.Kind), p.Reason, p.Means, p.Next})
	}
	onCall, err := os.ReadFile(filepath.Join(root, "docs", "on-call.md"))
	require.NoError(t, err)
	checkPage(t, "errors.md", errorsPage(byKind(found), string(onCall)))
}

// A row is one reason of a code with its messages, most specific first, and its next step.
type row struct {
	reason, next string
	messages     []string
}

// maxMessages is how many messages of a reason the page has.
const maxMessages = 3

// byKind merges the reasons of each kind, sorted by name. It leaves out a reason, a kind or a message
// that is computed as a whole.
func byKind(found []reason) map[string][]row {
	merged := map[string]map[string]*row{}
	for _, r := range found {
		if r.reason == "" || strings.HasPrefix(r.reason, "…") || r.kind == "" || r.kind == "…" {
			continue
		}
		if merged[r.kind] == nil {
			merged[r.kind] = map[string]*row{}
		}
		m := merged[r.kind][r.reason]
		if m == nil {
			m = &row{reason: r.reason}
			merged[r.kind][r.reason] = m
		}
		if message := plain(r.message); regexp.MustCompile(`[a-z]`).MatchString(message) && !slices.Contains(m.messages, message) {
			m.messages = append(m.messages, message)
		}
		if next := plain(r.next); next != "…" {
			m.next = cmp.Or(m.next, next)
		}
	}
	rows := map[string][]row{}
	for kind, reasons := range merged {
		for _, name := range slices.Sorted(maps.Keys(reasons)) {
			r := *reasons[name]
			slices.Sort(r.messages)
			rows[kind] = append(rows[kind], r)
		}
	}
	return rows
}

func errorsPage(rows map[string][]row, onCall string) string {
	var b strings.Builder
	b.WriteString(`# Errors

<!-- Generated from the source code. Run ./task gen. -->

Every unsuccessful response of the admin API and of the node API has an error envelope:

` + "```json" + `
{
  "error": {
    "code": "not_found",
    "message": "no node \"gpu-71\"; did you mean gpu-17?",
    "next": "gpuaas node list",
    "correlation_id": "…"
  }
}
` + "```" + `

| field | meaning |
| --- | --- |
| ` + "`code`" + ` | The kind of the error. Programs decide by it. |
| ` + "`reason`" + ` | Narrows the code. It may be absent. |
| ` + "`message`" + ` | What happened, for people. Its text may change in any version. |
| ` + "`next`" + ` | The command or the action that resolves the error. |
| ` + "`correlation_id`" + ` | Finds the request in the logs, the audit trail and the traces. |

A client that accepts ` + "`application/problem+json`" + ` gets the same as problem details (RFC 9457), whose ` + "`type`" + ` is the address of the
code on this page. With ` + "`-o json`" + `, the CLI prints the envelope, and its exit code depends on the code. Parked operations, results of
tasks and the logs of the programs have the same codes and reasons.

## Codes

| code | HTTP status | exit code | may succeed later | meaning |
| --- | --- | --- | --- | --- |
`)
	for _, k := range schema.Kinds() {
		later := ""
		if k.Retry {
			later = "yes"
		}
		fmt.Fprintf(&b, "| [`%s`](#%s) | %d | %d | %s | %s |\n", k.Kind, k.Kind, k.HTTP, k.Exit, later, k.Means)
	}
	b.WriteString("\n\"May succeed later\" means that the same request may succeed without a change. In the messages below, … stands for a value. A link leads\nto what to do about an operation that is parked for the reason.\n")
	for _, k := range schema.Kinds() {
		fmt.Fprintf(&b, "\n## `%s`\n\n%s HTTP status %d, exit code %d.\n\nNext step, unless the error has another one: %s.\n", k.Kind, k.Means, k.HTTP, k.Exit,
			cell(adminapi.NextStep(k.Kind)))
		if list := rows[string(k.Kind)]; len(list) > 0 {
			b.WriteString("\n| reason | messages | next step |\n| --- | --- | --- |\n")
			for _, r := range list {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", reasonCell(r.reason, onCall), cell(strings.Join(r.messages[:min(maxMessages, len(r.messages))], " / ")), cell(r.next))
			}
		}
	}
	return b.String()
}

// reasonCell links a reason to its heading in docs/on-call.md.
func reasonCell(name, onCall string) string {
	if strings.Contains(onCall, "\n### `"+name+"`\n") {
		return "[`" + name + "`](../on-call.md#" + name + ")"
	}
	return "`" + name + "`"
}

// cell escapes a text for a cell of a table. A command alone is code.
func cell(text string) string {
	if regexp.MustCompile(`^gpuaas [a-z][^;,:]*$`).MatchString(text) && !regexp.MustCompile(`^gpuaas (node|op) …`).MatchString(text) {
		return "`" + text + "`"
	}
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}

// TestReasons collects the reasons of a small source: constants of another package, helpers with the reason or
// the message of their callers, and literals.
func TestReasons(t *testing.T) {
	t.Parallel()
	s := newSource()
	for dir, text := range map[string]string{
		"schema": `package schema
const KindFenced Kind = "fenced"
const ReasonLocked = "node_locked"`,
		"api": `package api
import "github.com/gpuaas/gpuaas/schema"
const why = "bad_"
func one() error { return schema.NewError(schema.KindFenced, "node %s", n).WithReason(schema.ReasonLocked).WithNext("gpuaas node show " + n) }
func bad(field, format string) error { return schema.Wrap(schema.KindFenced, err, format).WithReason(why + field) }
func of(reason, format string) error { return schema.NewError(schema.KindFenced, "x: " + format).WithReason(reason) }
func two() error { return of("second", "y %d") }
func three() error { return &schema.Error{Kind: schema.KindFenced, Message: "m", Reason: "third"} }
func four() error { return bad("name", "z") }`,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), dir+".go", text, parser.SkipObjectResolution)
		require.NoError(t, err)
		s.add(dir, file)
	}
	require.ElementsMatch(t, []reason{
		{"fenced", "node_locked", "node %s", "gpuaas node show …"},
		{"fenced", "second", "x: …", ""},
		{"fenced", "third", "m", ""},
		{"fenced", "bad_…", "…", ""},
	}, s.reasons())
	require.Equal(t, map[string][]row{"fenced": {{reason: "a", messages: []string{"node …", "one"}, next: "gpuaas stuck"}}}, byKind([]reason{
		{"fenced", "a", "node %.64q%s", "…"}, {"fenced", "a", "one", "gpuaas stuck"}, {"fenced", "a", "…", ""}, {"…", "a", "x", ""}, {"fenced", "…", "x", ""},
	}))
}
