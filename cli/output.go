package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// format is the form of a command's output on stdout.
type format string

// The formats. jsonpath=EXPRESSION is one too.
const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatWide  format = "wide" // a table with more columns
	formatName  format = "name" // one name per line
	formatPath  format = "jsonpath="
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value: the placeholder in the help.
func (*format) Type() string { return "table|wide|json|yaml|name|jsonpath=EXPRESSION" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch v := format(s); v {
	case formatTable, formatWide, formatJSON, formatYAML, formatName:
		*f = v
		return nil
	}
	expression, ok := strings.CutPrefix(s, string(formatPath))
	if !ok {
		return fmt.Errorf("must be table, wide, json, yaml, name or jsonpath=EXPRESSION")
	}
	if strings.Trim(expression, "{} ") == "" {
		return errors.New("the expression is missing: for example jsonpath='{.nodes[*].host}'")
	}
	if _, err := parsePath(expression); err != nil {
		return fmt.Errorf("not an RFC 9535 path: %s", strings.TrimPrefix(err.Error(), "jsonpath: "))
	}
	*f = format(s)
	return nil
}

// findOutput reads -o before the command line is parsed, so that a mistake before it
// is reported in its format.
func findOutput(output *format, args []string) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags, f.Usage = true, func() {}
	f.VarP(output, "output", "o", "")
	f.Parse(args) //nolint:errcheck // the parse of the command reports it
}

// print writes a result to stdout: the object itself for programs, the output of
// table for people, the names for -o name.
func (e *console) print(object any, table func(w io.Writer), names ...string) error {
	switch {
	case e.machine():
		return e.printMachine(object)
	case e.output != formatName:
		return e.printTable(table)
	case len(names) == 0:
		return usagef("gpuaas", "-o name: the output of this command has no names")
	}
	return e.printTable(func(w io.Writer) {
		for _, name := range names {
			row(w, name)
		}
	})
}

// listing is a list to print.
type listing[T any] struct {
	// object is the list in the form of the admin API.
	object any
	rows   []T
	// empty is the message when there are no rows.
	empty  string
	header []string
	// wide is the number of the last columns that only -o wide shows.
	wide int
	// stack prints a block of lines per row on a terminal that is too narrow for the columns before
	// the last one, which may wrap.
	stack bool
	cells func(T) []string
	// name is the row's name for -o name.
	name func(T) string
}

// printList prints a list in the selected format.
func printList[T any](e *console, l listing[T]) error {
	if e.output == formatWide && l.wide == 0 {
		return usagef("gpuaas", "-o wide: this list has no more columns than -o table")
	}
	if len(l.rows) == 0 && l.empty != "" {
		e.message("%s", l.empty)
	}
	if len(l.rows) == 0 && !e.machine() {
		return nil
	}
	var names []string
	for _, r := range l.rows {
		names = append(names, l.name(r))
	}
	return e.print(l.object, func(w io.Writer) {
		columns := len(l.header)
		if e.output == formatTable {
			columns -= l.wide
		}
		cells := [][]string{l.header[:columns]}
		for _, r := range l.rows {
			cells = append(cells, l.cells(r)[:columns])
		}
		if l.stack && e.tty.out && e.tty.outWidth() > 0 && widthOf(cells) > e.tty.outWidth() {
			stack(w, cells)
			return
		}
		for _, c := range cells {
			row(w, c...)
		}
	}, names...)
}

// widthOf is the number of columns of the terminal that a table takes without its last column.
func widthOf(table [][]string) (width int) {
	for column := range len(table[0]) - 1 {
		widest := 0
		for _, cells := range table {
			widest = max(widest, utf8.RuneCountInString(cells[column]))
		}
		width += widest + 2
	}
	return width - 2
}

// stack writes each row below the header of a table as lines of a label and a value.
func stack(w io.Writer, table [][]string) {
	for i, cells := range table[1:] {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for column, cell := range cells {
			row(w, table[0][column], cell)
		}
	}
}

// machine reports whether the output is for programs.
func (e *console) machine() bool {
	return e.output == formatJSON || e.output == formatYAML || strings.HasPrefix(string(e.output), string(formatPath))
}

func (e *console) printMachine(v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	if err != nil {
		return fmt.Errorf("rendering JSON: %w", err)
	}
	if expression, ok := strings.CutPrefix(string(e.output), string(formatPath)); ok {
		return e.printPath(expression, []byte(e.addDirect(text.String())))
	}
	out := []byte(e.addDirect(text.String()))
	if e.output == formatYAML {
		if out, err = yaml.JSONToYAML(out); err != nil {
			return fmt.Errorf("rendering YAML: %w", err)
		}
	}
	_, err = e.stdout.Write(out)
	return err
}

// printTable writes tab-separated cells as aligned columns. Text from nodes and
// people is cleaned, so that it cannot control the reader's terminal.
func (e *console) printTable(table func(w io.Writer)) error {
	w := tabwriter.NewWriter(editor{e.stdout, clean}, 0, 0, 2, ' ', 0)
	table(editor{w, e.addDirect}) // before the alignment, because it changes the width of cells
	return w.Flush()
}

// message writes a line to stderr.
func (e *console) message(format string, args ...any) {
	fmt.Fprintln(e.stderr, e.addDirect(clean(fmt.Sprintf(format, args...))))
}

// addDirect adds --direct to the commands in a text if this one has it.
func (e *console) addDirect(text string) string {
	if e.commands == nil {
		return text
	}
	return e.commands.Replace(text)
}

// editor edits all text that is written through it. Each write is whole lines.
type editor struct {
	w    io.Writer
	edit func(string) string
}

func (d editor) Write(p []byte) (int, error) {
	if _, err := io.WriteString(d.w, d.edit(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// row writes one row of a table. A cell never ends its column or its line.
func row(w io.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = strings.Map(harmless, c)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// fields writes pairs of a label and a value, one per row and without empty values.
func fields(w io.Writer, pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			row(w, pair...)
		}
	}
}

// clean replaces control characters other than a line's end.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return harmless(r)
	}, s)
}

// harmless replaces a control character, such as the escape that starts a
// terminal's commands, and a character that changes the direction of text.
func harmless(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
		return '?'
	}
	return r
}

// dash is s, or "-" for an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// took is lifecycle.Span with milliseconds for less than a second.
func took(d time.Duration) string {
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%dms", max(d.Milliseconds(), 1))
	}
	return lifecycle.Span(d)
}

// stamp renders a moment and its distance from now.
func (e *console) stamp(t time.Time) string {
	ago := e.clock.now().Sub(t)
	if ago < 0 {
		return fmt.Sprintf("%s (in %s)", t.UTC().Format(time.RFC3339), lifecycle.Span(-ago))
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), lifecycle.Span(ago))
}

// stampOf is stamp, or "-" without a time.
func (e *console) stampOf(t *time.Time) string { return dash(e.stampIf(t)) }

// stampIf is stamp, or empty without a time.
func (e *console) stampIf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return e.stamp(*t)
}
