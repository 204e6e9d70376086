package archtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const (
	maxFileLines = 500
	maxMainLines = 20
)

func TestFileSizes(t *testing.T) {
	t.Parallel()
	goFiles(t, func(path, text string) {
		lines := strings.Count(text, "\n")
		switch {
		case strings.HasSuffix(path, "_test.go"):
		case strings.HasPrefix(path, "cmd/") && strings.HasSuffix(path, "/main.go"):
			assert.LessOrEqual(t, lines, maxMainLines, "%s: a main must not contain logic", path)
		default:
			assert.LessOrEqual(t, lines, maxFileLines, "%s is too long", path)
		}
	})
}

// TestNoInit also covers the nested modules, which the linter does not check.
func TestNoInit(t *testing.T) {
	t.Parallel()
	goFiles(t, func(path, text string) {
		assert.False(t, strings.HasPrefix(text, "func init()") || strings.Contains(text, "\nfunc init()"), "%s has an init function", path)
	})
}

func TestPackageNames(t *testing.T) {
	t.Parallel()
	vague := []string{"util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "types", "base"}
	for _, p := range packages(t) {
		assert.False(t, slices.Contains(vague, p.Name), "%s: the name %q is too vague", p.ImportPath, p.Name)
	}
}
