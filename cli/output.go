package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"
)

// format is the form of what a command prints on stdout.
type format string

// The formats.
const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatWide  format = "wide" // a table with more columns
	formatName  format = "name" // one name a line
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value: what the help shows.
func (*format) Type() string { return "table|wide|json|yaml|name" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	switch v := format(s); v {
	case formatTable, formatWide, formatJSON, formatYAML, formatName:
		*f = v
		return nil
	}
	return fmt.Errorf("want table, wide, json, yaml or name")
}

// print writes a result to stdout: the object itself for machines, what table
// writes for people.
func (e *console) print(v any, table func(w io.Writer)) error {
	switch e.output {
	case formatName:
		if list, ok := v.(interface{ names() []string }); ok {
			return e.printTable(func(w io.Writer) {
				for _, name := range list.names() {
					row(w, name)
				}
			})
		}
		return usagef("gpuaas", "-o name: this command has no names to print")
	case formatTable, formatWide:
		return e.printTable(table)
	}
	return e.printMachine(v)
}

// machine reports whether the output is for programs.
func (e *console) machine() bool { return e.output == formatJSON || e.output == formatYAML }

func (e *console) printMachine(v any) error {
	if e.output == formatYAML {
		text, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("rendering YAML: %w", err)
		}
		_, err = e.stdout.Write(text)
		return err
	}
	enc := json.NewEncoder(e.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable writes tab-separated cells as aligned columns. What nodes and
// people wrote is cleaned, so that it cannot steer the reader's terminal.
func (e *console) printTable(table func(w io.Writer)) error {
	w := tabwriter.NewWriter(cleaner{e.stdout}, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// say writes a line of talk to stderr.
func (e *console) say(format string, args ...any) {
	fmt.Fprintln(e.stderr, clean(fmt.Sprintf(format, args...)))
}

// cleaner cleans all that is written through it.
type cleaner struct{ w io.Writer }

func (c cleaner) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, clean(string(p))); err != nil {
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

// clean replaces control characters other than a line's end.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return harmless(r)
	}, s)
}

// harmless replaces a control character, among them the escape that starts a
// terminal's commands, and those that turn the direction of what follows.
func harmless(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
		return '?'
	}
	return r
}

// count is a number of things: 1 row, 2 rows.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// dash is s, or "-" for an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// span renders a duration as people say it: 45s, 12m, 3h20m, 5d4h.
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	days, hours := int(d/(24*time.Hour)), int(d/time.Hour)%24
	minutes, seconds := int(d/time.Minute)%60, int(d/time.Second)%60
	switch {
	case days > 0:
		return pair(days, "d", hours, "h")
	case hours > 0:
		return pair(hours, "h", minutes, "m")
	case minutes > 0:
		return pair(minutes, "m", seconds, "s")
	}
	return fmt.Sprintf("%ds", seconds)
}

// took is span with milliseconds for what was quicker than a second.
func took(d time.Duration) string {
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%dms", max(d.Milliseconds(), 1))
	}
	return span(d)
}

func pair(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unitA)
	}
	return fmt.Sprintf("%d%s%d%s", a, unitA, b, unitB)
}

// stamp renders a moment and how long ago it was.
func (e *console) stamp(t time.Time) string {
	ago := e.clock.now().Sub(t)
	if ago < 0 {
		return fmt.Sprintf("%s (in %s)", t.UTC().Format(time.RFC3339), span(-ago))
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), span(ago))
}

func (e *console) stampOf(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return e.stamp(*t)
}
