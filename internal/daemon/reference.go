package daemon

import (
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"text/template"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Setting is one variable of the environment that a program reads.
type Setting struct {
	Name     string
	Default  string
	Help     string
	Required bool
	// Secret settings may also be given as NAME_FILE. The variable wins, unless the setting is
	// Exclusive: then it is a fault to set both.
	Secret, Exclusive bool
	// Example is a valid value, for the error message of a required setting.
	Example string

	field string
}

// Names returns the variables that set the setting.
func (s Setting) Names() []string {
	if s.Secret {
		return []string{s.Name, s.Name + "_FILE"}
	}
	return []string{s.Name}
}

// read returns the setting's value, "" when it is not set.
func (s Setting) read(getenv func(string) string) (string, error) {
	v, file := getenv(s.Name), s.Name+"_FILE"
	if v != "" && s.Exclusive && getenv(file) != "" {
		return "", fmt.Errorf("%s and %s exclude each other", s.Name, file)
	}
	if v != "" || !s.Secret {
		return v, nil
	}
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
			Example: field.Tag.Get("example"), Required: options == "required", Secret: field.Type == reflect.TypeFor[schema.Secret](),
			Exclusive: field.Tag.Get("exclusive") == "true"}
		if s.Default == "" && !s.Secret && (!value.IsZero() || field.Type == reflect.TypeFor[time.Duration]()) {
			s.Default = fmt.Sprint(value.Interface())
		}
		out = append(out, s)
	}
	return out
}

// settings lists everything that the program reads from the environment.
func (p Program) settings() []Setting {
	library := librarySettings()
	if p.Detached {
		library = library[len(library)-1:] // that of traces
	}
	return append(settingsOf(p.Config), library...)
}

//go:embed reference.tmpl
var pages string

// render writes a page of reference.tmpl. flags are those of the command line.
func (p Program) render(w io.Writer, page string, flags *flag.FlagSet) {
	var all []*flag.Flag
	flags.VisitAll(func(f *flag.Flag) { all = append(all, f) })
	t := template.Must(template.New("").Funcs(template.FuncMap{"join": strings.Join, "wrap": wrap}).Parse(pages))
	_ = t.ExecuteTemplate(w, page, map[string]any{"Program": p, "Flags": all, "Settings": p.settings(), "Ready": readyUsage}) // the reader may be gone
}

// wrap splits a text into lines for a terminal.
func wrap(text string) (lines []string) {
	const width = 74
	for word := range strings.FieldsSeq(text) {
		if n := len(lines) - 1; n >= 0 && len(lines[n])+1+len(word) <= width {
			lines[n] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Reference returns the program's reference page in Markdown: what --help
// prints, as tables.
func (p Program) Reference() string {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	if p.Flags != nil {
		p.Flags(flags)
	}
	var b strings.Builder
	p.render(&b, "reference", flags)
	return b.String()
}
