package cli

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/dev"
	"github.com/gpuaas/gpuaas/schema"
)

// The reference page is what the commands say. -update rewrites it.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	const path = "../docs/reference/gpuaas.md"
	h := setup(t)
	h.env.platform.Dev = dev.NewCommand
	page := referencePage(newRoot(h.env))
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if page != string(got) {
		t.Errorf("%s is not up to date; run ./task gen", path)
	}
}

// The group dev rejects an unknown command like every other group.
func TestUnknownDevCommand(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.env.platform.Dev = dev.NewCommand
	require.Equal(t, schema.ExitUsage, h.run("dev", "upp"))
	require.Contains(t, h.err.String(), `unknown command "upp" for "gpuaas dev"; did you mean up`)
	require.Zero(t, h.run("dev"))
	require.Equal(t, schema.ExitNotFound, h.run("dev", "status", "--dir", h.env.dir, "-o", "jsonpath=$"))
}

// referencePage renders a command and every one below it as Markdown.
func referencePage(root *cobra.Command) string {
	var all []*cobra.Command
	var collect func(*cobra.Command)
	collect = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.Hidden && c.Name() != "completion" {
				all = append(all, sub)
				collect(sub)
			}
		}
	}
	collect(root)

	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Generated from the program's commands. Run ./task gen. -->\n\n%s", root.Name(), markdown(root.Long, "## "))
	fmt.Fprintf(&b, "\n## Global flags\n\nEvery command accepts these flags.\n\n%s", flagTable(root.PersistentFlags()))
	b.WriteString("\n## Break-glass mode\n\nThese commands work with `--direct`, while the admin API is down:\n\n")
	for _, path := range directCommands(root) {
		fmt.Fprintf(&b, "- %s\n", link(path))
	}
	b.WriteString("\n## Commands\n\n| command | |\n| --- | --- |\n")
	for _, c := range all {
		if c.Runnable() && !c.HasSubCommands() {
			fmt.Fprintf(&b, "| %s | %s |\n", link(c.CommandPath()), cell(c.Short))
		}
	}
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s\n\n%s", c.CommandPath(), markdown(c.Long, "### "))
		if c.HasSubCommands() {
			if c.Name() == "completion" {
				fmt.Fprintf(&b, "\n```\n%s\n```\n", useLines(c))
			}
			continue
		}
		fmt.Fprintf(&b, "\n```\n%s\n```\n", c.UseLine())
		if flags := flagTable(c.LocalNonPersistentFlags()); flags != "" {
			fmt.Fprintf(&b, "\n%s", flags)
		}
		if c.HasExample() {
			fmt.Fprintf(&b, "\nExamples:\n\n```sh\n%s\n```\n", regexp.MustCompile(`(?m)^  `).ReplaceAllString(c.Example, ""))
		}
	}
	return b.String()
}

// useLines are the commands of a group.
func useLines(group *cobra.Command) string {
	var lines []string
	for _, c := range group.Commands() {
		lines = append(lines, c.CommandPath())
	}
	return strings.Join(lines, "\n")
}

func link(path string) string {
	return fmt.Sprintf("[%s](#%s)", path, strings.ReplaceAll(path, " ", "-"))
}

func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	values := regexp.MustCompile(`: [a-z_-]+(, [a-z_-]+)+$`) // a closed set
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		if b.Len() == 0 {
			b.WriteString("| flag | description |\n| --- | --- |\n")
		}
		value, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + value)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		switch f.DefValue {
		case "", "false", "0", "0s", "[]":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		usage = values.ReplaceAllStringFunc(usage, func(list string) string {
			return ": `" + strings.ReplaceAll(list[2:], ", ", "`, `") + "`"
		})
		fmt.Fprintf(&b, "| `%s` | %s |\n", cell(name), cell(usage))
	})
	return b.String()
}

// cell escapes a text for a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", `\<`).Replace(text)
}

// markdown renders help text: paragraphs, and lists of names with descriptions below a
// line that ends with a colon.
func markdown(text, heading string) string {
	var b strings.Builder
	columns := regexp.MustCompile(`^  (\S.*?)(?:   *(\S.*))?$`)
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		lines := strings.Split(block, "\n")
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		if len(lines) < 2 || !strings.HasPrefix(lines[1], "  ") {
			b.WriteString(block + "\n")
			continue
		}
		if !strings.HasPrefix(lines[0], "  ") {
			fmt.Fprintf(&b, "%s%s\n\n", heading, strings.TrimSuffix(lines[0], ":"))
			lines = lines[1:]
		}
		var rows [][]string
		for _, line := range lines {
			if strings.HasPrefix(line, "      ") {
				last := rows[len(rows)-1]
				last[2] = strings.TrimSpace(last[2] + " " + strings.TrimSpace(line))
			} else {
				rows = append(rows, columns.FindStringSubmatch(line))
			}
		}
		b.WriteString("| | |\n| --- | --- |\n")
		for _, r := range rows {
			fmt.Fprintf(&b, "| `%s` | %s |\n", cell(r[1]), cell(r[2]))
		}
	}
	return b.String()
}
