package daemon

import (
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Setting is one variable of the environment that a program reads.
type Setting struct {
	Name     string
	Default  string
	Help     string
	Required bool
	// Secret settings may also be given as NAME_FILE.
	Secret bool

	field string
}

// names returns the variables that set the setting.
func (s Setting) names() []string {
	if s.Secret {
		return []string{s.Name, s.Name + "_FILE"}
	}
	return []string{s.Name}
}

// read returns the setting's value, "" when it is not set.
func (s Setting) read(getenv func(string) string) (string, error) {
	if v := getenv(s.Name); v != "" || !s.Secret {
		return v, nil
	}
	file := s.Name + "_FILE"
	path := getenv(file)
	if path == "" {
		return "", nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return "", fmt.Errorf("%s: the file is empty", file)
	}
	return text, nil
}

// settingsOf lists the settings of the struct that target points to. A value that
// a field holds is its default where no envDefault is given.
func settingsOf(target any) []Setting {
	var out []Setting
	v := reflect.ValueOf(target).Elem()
	for field, value := range v.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("env"), ",")
		if name == "" {
			if field.Type.Kind() == reflect.Struct && value.CanAddr() && field.IsExported() {
				out = append(out, settingsOf(value.Addr().Interface())...)
			}
			continue
		}
		s := Setting{Name: name, Default: field.Tag.Get("envDefault"), Help: field.Tag.Get("help"), field: field.Name,
			Required: options == "required", Secret: field.Type == reflect.TypeFor[schema.Secret]()}
		if s.Default == "" && !s.Secret && (!value.IsZero() || field.Type == reflect.TypeFor[time.Duration]()) {
			s.Default = fmt.Sprint(value.Interface())
		}
		out = append(out, s)
	}
	return out
}

// settings lists everything that the program reads from the environment.
func (p Program) settings() []Setting { return append(settingsOf(p.Config), p.Also...) }

func (p Program) help(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s [flags]\n  %s version\n\nFlags:\n", p.About, p.Name, p.Name)
	fmt.Fprintf(w, "  --help\n      print this text and exit\n")
	flags.VisitAll(func(f *flag.Flag) {
		fmt.Fprintf(w, "  --%s\n      %s%s\n", f.Name, f.Usage, defaultNote(f))
	})
	fmt.Fprint(w, "\nEnvironment:\n")
	for _, s := range p.settings() {
		fmt.Fprintf(w, "  %s%s\n", strings.Join(s.names(), ", "), s.note())
		for line := range wrap(s.Help) {
			fmt.Fprintf(w, "      %s\n", line)
		}
	}
	fmt.Fprint(w, "\nExit codes: 0 stopped by a signal, 1 failed, 2 invalid arguments or configuration.\n")
}

// wrap splits a text into lines for a terminal.
func wrap(text string) iter.Seq[string] {
	const width = 74
	return func(yield func(string) bool) {
		line := ""
		for word := range strings.FieldsSeq(text) {
			if line != "" && len(line)+1+len(word) > width {
				if !yield(line) {
					return
				}
				line = ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		yield(line)
	}
}

func (s Setting) note() string {
	switch {
	case s.Required:
		return " (required)"
	case s.Default != "":
		return " (default " + s.Default + ")"
	}
	return ""
}

func defaultNote(f *flag.Flag) string {
	if f.DefValue == "" || f.DefValue == "false" {
		return ""
	}
	return " (default " + f.DefValue + ")"
}

// Reference returns the program's reference page in Markdown: what --help
// prints, as tables.
func (p Program) Reference() string {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	if p.Flags != nil {
		p.Flags(flags)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Generated from the program's configuration. Run ./task gen. -->\n\n%s\n", p.Name, p.About)
	fmt.Fprintf(&b, "\n## Usage\n\n```\n%s [flags]\n%s version\n```\n\n", p.Name, p.Name)
	b.WriteString("| flag | does |\n| --- | --- |\n| `--help` | print the reference and exit |\n| `--version` | print the version and exit |\n")
	flags.VisitAll(func(f *flag.Flag) {
		fmt.Fprintf(&b, "| `--%s` | %s%s |\n", f.Name, f.Usage, defaultNote(f))
	})
	b.WriteString("\nExit codes: 0 stopped by a signal, 1 failed, 2 invalid arguments or configuration.\n")
	b.WriteString("\n## Environment\n\n| variable | default | description |\n| --- | --- | --- |\n")
	for _, s := range p.settings() {
		value := "`" + s.Default + "`"
		switch {
		case s.Required:
			value = "required"
		case s.Default == "":
			value = "none"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(s.names(), "`, `"), value, s.Help)
	}
	b.WriteString(health)
	return b.String()
}

// health is the part of the reference that all daemons share.
const health = `
A variable that ends in ` + "`_FILE`" + ` names a file with the value; use it for secrets. All faults of a configuration
are reported at once.

## Health and stop

Every listener answers ` + "`/livez`" + ` with 200 while the process runs, and ` + "`/readyz`" + ` with 200 while the process can work.
Otherwise ` + "`/readyz`" + ` answers 503 with the error envelope, whose message names the dependencies that are down.
The dependencies are ` + "`postgres`, `vault` and `temporal`" + `, in the worker also ` + "`task-signer`" + `. The log holds the cause of each change.
` + "`/readyz?exclude=NAME`" + ` leaves a dependency out; the parameter may be repeated. Nodes keep working while Temporal or Vault
is down, so a load balancer of the node API should probe ` + "`/readyz?exclude=temporal&exclude=vault`" + `.

On SIGTERM the process answers 503 on ` + "`/readyz`" + `, keeps working for ` + "`GPUAAS_LAME_DUCK`" + `, then stops accepting work and lets
what is in progress finish for up to ` + "`GPUAAS_DRAIN_TIMEOUT`" + `. Under systemd it reports READY, STOPPING and the watchdog.
`
