package archtest

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDependencies compares the headings of docs/dependencies.md with the modules
// that our packages and their tests import. go mod tidy (./task gen:check)
// verifies that go.mod lists the same modules as direct.
func TestDependencies(t *testing.T) {
	t.Parallel()
	required := names(regexp.MustCompile(`(?m)^(?:\t|require )([^\s(]+) v\S+`).FindAllStringSubmatch(read(t, "go.mod"), -1))
	direct := map[string]bool{}
	for _, p := range packages(t) {
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if m := provider(required, imp); m != "" {
				direct[m] = true
			}
		}
	}
	doc := regexp.MustCompile("(?m)^### `(.+)`$").FindAllStringSubmatch(read(t, "docs/dependencies.md"), -1)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(direct)), names(doc))
}

// provider returns the module that contains a package: the longest prefix of its path.
func provider(modules []string, path string) (longest string) {
	for _, m := range modules {
		if within(path, m) && len(m) > len(longest) {
			longest = m
		}
	}
	return longest
}

// A document is a text for people, by its path from the root.
type document struct{ path, text string }

func documents(t *testing.T) (docs []document) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/howto/*.md", "docs/reference/*.md", "deploy/*/*.md",
		".github/*.md", ".github/ISSUE_TEMPLATE/*.yml", ".github/workflows/*.yml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		for _, file := range found {
			path, err := filepath.Rel(root, file)
			require.NoError(t, err)
			docs = append(docs, document{filepath.ToSlash(path), read(t, path)})
		}
	}
	return docs
}

// TestDocNames checks what documents refer to: relative links, and in code spans
// tests, files, targets of Taskfile.yml, environment variables and metrics.
func TestDocNames(t *testing.T) {
	t.Parallel()
	assert.Empty(t, danglingNames(documents(t), known(t)))
}

// sources is what documents may refer to.
type sources struct {
	tests, targets map[string]bool
	// text is the text of all files but Markdown, for variables and metrics.
	text string
	// exists reports whether there is a file or folder, by its path from the root.
	exists func(path string) bool
}

func known(t *testing.T) sources {
	t.Helper()
	s := sources{tests: map[string]bool{}, targets: map[string]bool{}, exists: func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}}
	add := func(set map[string]bool, expr, text string) {
		for _, name := range names(regexp.MustCompile(expr).FindAllStringSubmatch(text, -1)) {
			set[name] = true
		}
	}
	var all strings.Builder
	files(t, func(path, text string) {
		if filepath.Ext(path) == ".md" {
			return
		}
		if strings.HasSuffix(path, "_test.go") {
			add(s.tests, `(?m)^func (Test\w+)\(`, text)
		}
		all.WriteString(text)
	})
	add(s.targets, `(?m)^  ([\w:-]+):$`, read(t, "Taskfile.yml"))
	s.text = all.String()
	return s
}

// danglingNames lists the references that lead nowhere.
func danglingNames(docs []document, s sources) (found []string) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	rules := []struct {
		expr string
		ok   func(name string) bool
	}{
		{"`(Test\\w+)`", func(name string) bool { return s.tests[name] }},
		{"`((?:[\\w.-]+/)+[\\w-]+\\.(?:go|sql|yaml|hcl|sh))`", s.exists},
		{`\./task ([a-z][\w:-]*)`, func(name string) bool { return s.targets[name] }},
		{`\b(GPUAAS_[A-Z0-9_]*[A-Z0-9])\b`, func(name string) bool { return strings.Contains(s.text, name) }},
		{"`(gpuaas_[a-z0-9_]+)[`{]", func(name string) bool { return strings.Contains(s.text, name) }},
	}
	for _, d := range docs {
		for _, target := range names(link.FindAllStringSubmatch(d.text, -1)) {
			if !s.exists(path.Join(path.Dir(d.path), target)) {
				found = append(found, d.path+" links to "+target)
			}
		}
		for _, r := range rules {
			for _, name := range names(regexp.MustCompile(r.expr).FindAllStringSubmatch(d.text, -1)) {
				if !r.ok(name) {
					found = append(found, d.path+" names "+name)
				}
			}
		}
	}
	return found
}

func TestDocNamesReports(t *testing.T) {
	t.Parallel()
	s := sources{tests: map[string]bool{"TestLease": true}, targets: map[string]bool{"bench": true},
		text: `env:"GPUAAS_ENV" name: "gpuaas_nodes"`, exists: func(path string) bool { return path == "docs/tour.md" || path == "cli/exit.go" }}
	right := "[tour](tour.md#one) `TestLease` `cli/exit.go` ./task bench `GPUAAS_ENV` `gpuaas_nodes`"
	wrong := "[tour](../tour.md) `TestLoan` `cli/quit.go` ./task benches `GPUAAS_ENVIRONMENT` `gpuaas_boxes{state}`"
	require.Equal(t, []string{"docs/b.md links to ../tour.md", "docs/b.md names TestLoan", "docs/b.md names cli/quit.go",
		"docs/b.md names benches", "docs/b.md names GPUAAS_ENVIRONMENT", "docs/b.md names gpuaas_boxes"},
		danglingNames([]document{{"docs/a.md", right}, {"docs/b.md", wrong}}, s))
}

func names(matches [][]string) []string {
	var all []string
	for _, m := range matches {
		all = append(all, m[1])
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}
