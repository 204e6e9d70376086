package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDecisions checks that the decisions are numbered in order, and that each link to
// one leads to its heading.
func TestDecisions(t *testing.T) {
	t.Parallel()
	assert.Empty(t, badDecisions(read(t, "docs/decisions.md"), documents(t)))
}

// badDecisions lists headings with a wrong number, and links to headings that do not
// exist.
func badDecisions(decisions string, docs []document) (found []string) {
	anchors := map[string]bool{}
	for i, heading := range names(regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(decisions, -1)) {
		if want := fmt.Sprintf("D-%03d: ", i+1); !strings.HasPrefix(heading, want) {
			found = append(found, "the heading "+heading+" must begin with "+want)
		}
		anchors[anchor(heading)] = true
	}
	for _, d := range docs {
		for _, target := range names(regexp.MustCompile(`decisions\.md#([\w-]+)`).FindAllStringSubmatch(d.text, -1)) {
			if !anchors[target] {
				found = append(found, d.path+" links to the decision "+target)
			}
		}
	}
	return found
}

// anchor returns the anchor that GitHub makes of a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestDecisionsReports(t *testing.T) {
	t.Parallel()
	docs := []document{{"docs/a.md", "[one](decisions.md#d-001-one-vaults-key) [two](decisions.md#two)"}}
	require.Empty(t, badDecisions("# Decisions\n\n## D-001: One: Vault's `key`\n\n## D-002: Two\n", docs[:0]))
	require.Equal(t, []string{"the heading D-001: Two must begin with D-002: ", "the heading Three must begin with D-003: ",
		"docs/a.md links to the decision two"},
		badDecisions("## D-001: One: Vault's `key`\n## D-001: Two\n## Three\n", docs))
}

// TestDocsIndex checks that docs/README.md links to each page of docs.
func TestDocsIndex(t *testing.T) {
	t.Parallel()
	index := read(t, "docs/README.md")
	for _, d := range documents(t) {
		if page, ok := strings.CutPrefix(d.path, "docs/"); ok && page != "README.md" {
			assert.Contains(t, index, "]("+page+")", "docs/README.md does not list the page")
		}
	}
}

// TestCodeOwners checks that the paths of CODEOWNERS exist. GitHub ignores a path that
// does not.
func TestCodeOwners(t *testing.T) {
	t.Parallel()
	paths := names(regexp.MustCompile(`(?m)^/(\S+) +@\S+$`).FindAllStringSubmatch(read(t, ".github/CODEOWNERS"), -1))
	require.NotEmpty(t, paths)
	for _, path := range paths {
		_, err := os.Stat(filepath.Join(root, path))
		assert.NoError(t, err)
	}
}
