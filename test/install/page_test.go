package install

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pagePath is the page that the test types.
const pagePath = "../../docs/install.md"

// The machines that a block may name.
const (
	control = "control"
	node    = "node"
)

// block is a fenced block of shell commands.
type block struct {
	section string // the heading above it
	line    int    // of its first command, from 1
	host    string // the machine on which it is typed, "" for an example
	text    string
}

// readPage returns the blocks of commands of a page in order. A comment on the line before a block
// says what to do with it: <!-- host: control --> types it on that machine, and
// <!-- example: reason --> does not run it. Each block of sh needs one of them.
func readPage(text string) (blocks []block, err error) {
	comment := regexp.MustCompile(`^<!-- (host|example): (.+) -->$`)
	var section, before string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch {
		case strings.HasPrefix(line, "#"):
			section = strings.TrimLeft(line, "# ")
		case strings.HasPrefix(line, "```"):
			end := i + 1
			for end < len(lines) && lines[end] != "```" {
				end++
			}
			if end == len(lines) {
				return nil, fmt.Errorf("line %d: the block has no end", i+1)
			}
			mark := comment.FindStringSubmatch(before)
			if line == "```sh" {
				b := block{section: section, line: i + 2, text: strings.Join(lines[i+1:end], "\n")}
				switch {
				case mark == nil:
					return nil, fmt.Errorf("line %d: the block needs a comment <!-- host: NAME --> or <!-- example: reason --> before it", i+1)
				case mark[1] == "host" && mark[2] != control && mark[2] != node:
					return nil, fmt.Errorf("line %d: there is no host %q", i+1, mark[2])
				case mark[1] == "host":
					b.host = mark[2]
				}
				blocks = append(blocks, b)
			}
			i = end
		}
		before = line
	}
	return blocks, nil
}

// TestPage checks the form of docs/install.md.
func TestPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(pagePath)
	require.NoError(t, err)
	blocks, err := readPage(string(raw))
	require.NoError(t, err)
	typed := map[string]int{}
	for _, b := range blocks {
		typed[b.host]++
	}
	assert.Greater(t, typed[control], typed[""], "most blocks are typed")
	assert.GreaterOrEqual(t, typed[node], 2)
}

func TestReadPageReports(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"```sh\nls\n```":                            "line 1: the block needs a comment",
		"<!-- host: laptop -->\n```sh\nls\n```":     `line 2: there is no host "laptop"`,
		"<!-- host: node -->\n\n```sh\nls\n```":     "line 3: the block needs a comment",
		"<!-- host: node -->\n```sh\nls\n":          "line 2: the block has no end",
		"<!-- example: -->\n```sh\nls\n```\n":       "line 2: the block needs a comment",
		"# A\n<!-- host: node -->\n```yaml\na\n```": "",
	} {
		_, err := readPage(text)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	blocks, err := readPage("# A\n<!-- host: node -->\n```sh\nls\n# no heading\nid\n```\n## B\n<!-- example: no network -->\n```sh\ncurl\n```\n")
	require.NoError(t, err)
	require.Equal(t, []block{{"A", 4, node, "ls\n# no heading\nid"}, {"B", 11, "", "curl"}}, blocks)
}
