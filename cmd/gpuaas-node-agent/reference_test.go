package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent"
)

var update = flag.Bool("update", false, "rewrite the reference page")

// The reference page is what --help prints. -update rewrites it.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference/gpuaas-node-agent.md"
	var help, stderr bytes.Buffer
	require.Zero(t, agent.Main(t.Context(), []string{"--help"}, nil, &help, &stderr, agent.Extras{}), stderr.String())
	page := "# gpuaas-node-agent\n\n<!-- Generated from the program's --help. Run ./task gen. -->\n" + markdown(help.String())
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if page != string(got) {
		t.Errorf("%s is not up to date; run ./task gen", path)
	}
}

// markdown renders help text. A block of lines is a paragraph. Below a line that ends
// with a colon, indented lines are a table if they have two columns, else code. A line of
// a table that is indented more continues the row above.
func markdown(help string) string {
	var b strings.Builder
	columns := regexp.MustCompile(`^  (\S.*?)   *(\S.*)$`)
	continued := regexp.MustCompile(`\n {4,}`)
	for block := range strings.SplitSeq(strings.TrimSpace(help), "\n\n") {
		lines := strings.Split(block, "\n")
		title, rest, _ := strings.Cut(lines[0], ": ")
		last := len(lines) - 1
		switch indented := strings.HasPrefix(lines[last], "  "); {
		case title == "Usage":
			fmt.Fprintf(&b, "\n## Usage\n\n```\n%s\n```\n", rest)
		case title == "Exit codes":
			fmt.Fprintf(&b, "\n## Exit codes\n\n%s\n", strings.Join(append([]string{rest}, lines[1:]...), "\n"))
		case indented && columns.MatchString(lines[last]):
			fmt.Fprintf(&b, "\n## %s\n\n| | |\n| --- | --- |\n", strings.TrimSuffix(lines[0], ":"))
			for _, line := range strings.Split(continued.ReplaceAllString(block, " "), "\n")[1:] {
				m := append(columns.FindStringSubmatch(line), "", line, "") // a line of another form is shown as it is
				fmt.Fprintf(&b, "| `%s` | %s |\n", m[1], strings.ReplaceAll(m[2], "|", `\|`))
			}
		case indented:
			code := 0
			for !strings.HasPrefix(lines[code], "  ") {
				code++
			}
			name, _, _ := strings.Cut(lines[0], " ") // Configuration, Examples:
			fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(name, ":"))
			if text := strings.Join(lines[:code], "\n"); text != name {
				fmt.Fprintf(&b, "\n%s\n", text)
			}
			fmt.Fprintf(&b, "\n```\n%s\n```\n",
				strings.ReplaceAll(strings.Join(lines[code:], "\n"), "\n  ", "\n")[2:])
		default:
			b.WriteString("\n" + block + "\n")
		}
	}
	return b.String()
}
