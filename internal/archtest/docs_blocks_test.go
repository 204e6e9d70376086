package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// markedPages are the documents whose command blocks are executed by a test or marked as examples.
// Those of install are typed by test/install.
func markedPages() []string {
	return []string{"README.md", "docs/install.md", "docs/on-call.md", "docs/onboarding.md", "docs/sizing.md", "docs/uninstall.md", "docs/upgrade.md"}
}

// A commandBlock is a block of commands of a document, with the comment on the line before it.
type commandBlock struct {
	line   int
	marker string
}

// commandBlocks returns the blocks without a language or in that of a shell.
func commandBlocks(text string) (blocks []commandBlock) {
	var before string
	inside := false
	for i, line := range strings.Split(text, "\n") {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && inside:
			inside = false
		case fence:
			inside = true
			if slices.Contains([]string{"", "sh", "bash", "shell", "console"}, language) {
				blocks = append(blocks, commandBlock{i + 1, strings.TrimSpace(before)})
			}
		}
		before = line
	}
	return blocks
}

// TestDocBlocks checks that the line before each block of commands is one of these comments:
//
//	<!-- tested: TestName -->      tests that type the block from the document
//	<!-- host: NAME -->            test/install types the block on this machine
//	<!-- example: reason -->       no test types the block, for this reason
func TestDocBlocks(t *testing.T) {
	t.Parallel()
	tests := testFiles(t)
	for _, page := range markedPages() {
		if _, err := os.Stat(filepath.Join(root, page)); page == "README.md" || err == nil {
			assert.Empty(t, badBlocks(page, read(t, page), tests))
		}
	}
}

// testFiles returns the texts of the files that have a test, by the test's name.
func testFiles(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	goFiles(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, name := range names(regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1)) {
				tests[name] = append(tests[name], text)
			}
		}
	})
	return tests
}

// badBlocks lists the blocks without a comment that holds: a test must exist, in a file that names the
// document.
func badBlocks(page, text string, tests map[string][]string) (found []string) {
	marker := regexp.MustCompile(`^<!-- (tested|host|example): (\S.*\S) -->$`)
	for _, b := range commandBlocks(text) {
		at := fmt.Sprintf("%s:%d: ", page, b.line)
		m := marker.FindStringSubmatch(b.marker)
		switch {
		case m == nil:
			found = append(found, at+"the line before the block must be a comment: tested, host or example")
		case m[1] == "host" && page != "docs/install.md":
			found = append(found, at+"only docs/install.md has hosts")
		case m[1] == "tested":
			for name := range strings.FieldsSeq(m[2]) {
				if !slices.ContainsFunc(tests[name], func(file string) bool { return strings.Contains(file, page) }) {
					found = append(found, at+"no file with the test "+name+" names the document")
				}
			}
		}
	}
	return found
}

func TestDocBlocksReports(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{"TestTyped": {`read("docs/a.md")`}, "TestOther": {`nothing`}}
	right := "<!-- tested: TestTyped -->\n```\ngpuaas stuck\n```\n\n<!-- example: needs a browser -->\n```sh\nls\n```\n\n```yaml\na: b\n```\n\n- item\n  <!-- example: in a list -->\n  ```\n  ls\n  ```\n"
	require.Empty(t, badBlocks("docs/a.md", right, tests))
	require.Empty(t, badBlocks("docs/install.md", "<!-- host: control -->\n```sh\nls\n```\n", tests))
	wrong := "```\nls\n```\n<!-- example: -->\n```\nls\n```\n<!-- tested: TestOther TestNone -->\n```\nls\n```\n<!-- host: node -->\n```bash\nls\n```\n"
	const noMarker = "the line before the block must be a comment: tested, host or example"
	require.Equal(t, []string{"docs/a.md:1: " + noMarker, "docs/a.md:5: " + noMarker,
		"docs/a.md:9: no file with the test TestOther names the document", "docs/a.md:9: no file with the test TestNone names the document",
		"docs/a.md:13: only docs/install.md has hosts"}, badBlocks("docs/a.md", wrong, tests))
}
