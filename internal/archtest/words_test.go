package archtest

import (
	"fmt"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A phrase is wording that this project does not use. docs/glossary.md has the
// terms that it does use.
type phrase struct {
	pattern string // regular expression, without regard to case
	instead string
	// names: the phrase is looked for in Go identifiers and in strings of one
	// word too. Without it only prose is searched.
	names bool
}

// compiled is a phrase with its expression.
type compiled struct {
	phrase
	re *regexp.Regexp
}

func compile(t *testing.T, phrases []phrase) []compiled {
	t.Helper()
	var all []compiled
	for _, p := range phrases {
		re, err := regexp.Compile(`(?i)\b(?:` + p.pattern + `)`)
		require.NoError(t, err)
		all = append(all, compiled{p, re})
	}
	return all
}

// A use is one occurrence of a phrase.
type use struct {
	file string
	line int
	text string // as written
	phrase
}

func (u use) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s", u.file, u.line, u.text, u.instead)
}

// TestWords rejects the phrases of words_list_test.go in Go comments, strings
// and names, and in documents, SQL, YAML, scripts and templates.
func TestWords(t *testing.T) {
	t.Parallel()
	phrases := compile(t, phrases())
	exceptions := map[string]int{}
	var found []string
	textFiles(t, func(path, text string) {
		for _, u := range search(phrases, path, text) {
			i := slices.IndexFunc(allowedWords(), func(a allowed) bool {
				return a.file == u.file && (a.pattern == "" || a.pattern == u.pattern)
			})
			if i >= 0 {
				exceptions[allowedWords()[i].file+" "+allowedWords()[i].pattern]++
				continue
			}
			found = append(found, u.String())
		}
	})
	assert.Empty(t, strings.Join(found, "\n"), "see docs/glossary.md")
	for _, a := range allowedWords() {
		assert.NotZero(t, exceptions[a.file+" "+a.pattern], "the exception of %s for %q is not needed", a.file, a.pattern)
	}
}

// search returns the uses of the phrases in one file.
func search(phrases []compiled, path, text string) (uses []use) {
	see := func(line int, text string, namesOnly bool) {
		for _, p := range phrases {
			if namesOnly && !p.names {
				continue
			}
			for _, at := range p.re.FindAllStringIndex(text, -1) {
				uses = append(uses, use{path, line + strings.Count(text[:at[0]], "\n"), strings.TrimSpace(text[at[0]:at[1]]), p.phrase})
			}
		}
	}
	if filepath.Ext(path) != ".go" {
		see(1, mask(text), false)
		return uses
	}
	fset := token.NewFileSet()
	file := fset.AddFile(path, -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		line := file.Line(pos)
		switch tok {
		case token.EOF:
			return uses
		case token.COMMENT:
			see(line, mask(lit), false)
		case token.STRING:
			lit = lit[1 : len(lit)-1]
			see(line, mask(lit), !strings.Contains(lit, " "))
		case token.IDENT:
			if lit != "Gather" { // a method of prometheus.Gatherer
				see(line, spread(lit), true)
			}
		}
	}
}

// quoted is what mask hides: names in quotes, code spans and lists of values.
var quoted = regexp.MustCompile("`[^`\n]+`|\"[\\w.-]+\"|'[\\w.-]+'|\\[[\\w, ]+\\]|\\w+(\\|\\w+)+")

// mask replaces quoted names, which may be values on the wire, by blanks.
func mask(text string) string {
	return quoted.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) })
}

// spread separates the words of an identifier.
func spread(name string) string {
	var b strings.Builder
	var last rune
	for _, r := range name {
		if unicode.IsUpper(r) && unicode.IsLower(last) || r == '_' {
			b.WriteByte(' ')
		}
		if r != '_' {
			b.WriteRune(unicode.ToLower(r))
		}
		last = r
	}
	return b.String()
}

// textFiles calls f for each text that people write: Go, Markdown, SQL, YAML,
// scripts, policies and templates. Generated files and test data are left out.
func textFiles(t *testing.T, f func(path, text string)) {
	t.Helper()
	kinds := []string{".go", ".md", ".sql", ".yaml", ".yml", ".sh", ".tmpl", ".hcl", ".service"}
	files(t, func(path, text string) {
		generated := strings.HasPrefix(text, "// Code generated ") || strings.HasPrefix(text, "<!-- Code generated ")
		if slices.Contains(kinds, filepath.Ext(path)) && !generated {
			f(path, text)
		}
	})
}

// TestSearch plants each kind of use.
func TestSearch(t *testing.T) {
	t.Parallel()
	phrases := compile(t, phrases())
	for _, c := range []struct {
		file, text string
		want       []string
	}{
		{"a.go", "package a\n\n// F tells the node.\nfunc F() {}\n", []string{"a.go:3: tells"}},
		{"a.go", "package a\n\nvar s = `one\nstate that was given up`\n", []string{"a.go:4: given up"}},
		{"a.go", "package a\n\nvar s = \"pretended\"\n", []string{"a.go:3: pretended"}},
		{"a.go", "package a\n\nfunc handOver() {}\n", []string{"a.go:3: hand over"}},
		{"a.go", "package a\n\n// \"cancelled\" is a status; so is `cancelled`.\nvar s = \"cancelled\"\n", nil},
		{"a.go", "package a\n\n// It was cancelled.\n", []string{"a.go:3: cancelled"}},
		{"a.md", "Fine.\nThe task is\nhanded over.\n", []string{"a.md:3: handed over"}},
		{"a.md", "A value of `cancelled`, canceled or for ever.\n", []string{"a.md:1: for ever"}},
		{"a.yaml", "enum: [failed, cancelled]\n# when Vault is away\n", []string{"a.yaml:2: is away"}},
		{"a.sql", "-- The behaviour.\n", []string{"a.sql:1: behaviour"}},
		{"a.md", "A former agent, for good.\n", []string{"a.md:1: former", "a.md:1: for good."}},
		{"a.md", "Formatted for good reasons: the format.\n", nil},
		{"a.go", "package a\n\ntype backDoor struct{}\n", []string{"a.go:3: door"}},
		{"a.md", "A backdoor, doorbells and indoor use.\n", nil},
		{"a.go", "package a\n\nvar unborn, births int\n", []string{"a.go:3: unborn", "a.go:3: births"}},
		{"a.go", "package a\n\nfunc makeRoom() {}\n", []string{"a.go:3: room"}},
		{"a.md", "It has room.\nIt leaves room for more.\n", []string{"a.md:1: room."}},
		{"a.go", "package a\n\n// The complaint is loud.\nvar level = \"loud\"\n", []string{"a.go:3: complaint", "a.go:3: loud"}},
		{"a.md", "It stores the wish anew.\n", []string{"a.md:1: wish", "a.md:1: anew"}},
		{"a.md", "It ends the waiting. The waiting nodes retry.\n", []string{"a.md:1: the waiting."}},
		{"a.md", "This very task, and the very first one.\n", []string{"a.md:1: This very task"}},
		{"a.md", "A file in the place of one that is there is no error.\n",
			[]string{"a.md:1: is no error", "a.md:1: in the place of", "a.md:1: that is there"}},
		{"a.md", "Is there no error? It is there.\n", nil},
		{"a.md", "See SECURITY.md, not security.md.\n", []string{"a.md:1: security.md"}},
	} {
		var got []string
		for _, u := range search(phrases, c.file, c.text) {
			got = append(got, fmt.Sprintf("%s:%d: %s", u.file, u.line, u.text))
		}
		assert.ElementsMatch(t, c.want, got, "%s", c.text)
	}
}
