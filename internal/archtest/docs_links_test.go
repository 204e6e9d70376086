package archtest

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocAnchors checks that each link from a document to a heading of a document leads to one.
func TestDocAnchors(t *testing.T) {
	t.Parallel()
	assert.Empty(t, danglingAnchors(documents(t)))
}

// danglingAnchors lists the links to headings that do not exist.
func danglingAnchors(docs []document) (found []string) {
	headings := map[string]map[string]bool{}
	for _, d := range docs {
		headings[d.path] = anchors(d.text)
	}
	link := regexp.MustCompile(`\]\(([^)#:]*)#([^)]+)\)`)
	for _, d := range docs {
		for _, m := range link.FindAllStringSubmatch(withoutCode(d.text), -1) {
			target := d.path
			if m[1] != "" {
				target = path.Join(path.Dir(d.path), m[1])
			}
			if known, document := headings[target]; document && !known[m[2]] {
				found = append(found, d.path+" links to "+target+"#"+m[2])
			}
		}
	}
	return found
}

// anchors returns the anchors that GitHub makes of the headings of a document. Equal headings get a number.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, heading := range names(regexp.MustCompile(`(?m)^#{1,6} (.+)$`).FindAllStringSubmatch(withoutCode(text), -1)) {
		heading = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`).ReplaceAllString(heading, "$1")
		name := anchor(heading)
		for n := 1; all[name]; n++ {
			name = anchor(heading) + "-" + string(rune('0'+n))
		}
		all[name] = true
	}
	return all
}

// withoutCode removes the blocks of code.
func withoutCode(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		} else if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestDocAnchorsReports(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"docs/a.md links to docs/b.md#three", "docs/a.md links to docs/a.md#code"}, danglingAnchors([]document{
		{"docs/a.md", "# One `two`\n## One two\n[here](#one-two) [and](#one-two-1) [there](b.md#see-b) [no](b.md#three) [no](#code) [file](x.go#L1)\n```\n# code\n[no](#none)\n```\n"},
		{"docs/b.md", "# See [b](b.md)\n"},
	}))
}
