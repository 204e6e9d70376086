package archtest

import (
	"maps"
	"os"
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

// TestDocLinks checks every relative link in the documents.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	docs := documents(t)
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, target := range names(link.FindAllStringSubmatch(string(text), -1)) {
			_, err := os.Stat(filepath.Join(filepath.Dir(doc), target))
			assert.NoError(t, err, "%s links to %s", strings.TrimPrefix(doc, root+"/"), target)
		}
	}
}

// documents lists the paths of the documents, from this folder.
func documents(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	return append(docs, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"))
}

// TestDocNames checks that every test and source file that a document names in a
// code span exists.
func TestDocNames(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	goFiles(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, name := range names(fn.FindAllStringSubmatch(text, -1)) {
				tests[name] = true
			}
		}
	})
	test := regexp.MustCompile("`(Test\\w+)`")
	file := regexp.MustCompile("`((?:[\\w.-]+/)+[\\w-]+\\.(?:go|sql|yaml|hcl|sh))`")
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, name := range names(test.FindAllStringSubmatch(string(text), -1)) {
			assert.True(t, tests[name], "%s names %s", strings.TrimPrefix(doc, root+"/"), name)
		}
		for _, path := range names(file.FindAllStringSubmatch(string(text), -1)) {
			assert.FileExists(t, filepath.Join(root, path), "named by %s", strings.TrimPrefix(doc, root+"/"))
		}
	}
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
