package reference

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A variable is one of the environment, with the programs that read it and its descriptions.
type variable struct {
	programs []string            // as links
	means    map[string][]string // programs by description
}

// TestConfigurationPage compares docs/reference/configuration.md with the pages of the programs, which the tests of
// the programs generate. -update rewrites the page.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	all := map[string]*variable{}
	for _, program := range []string{"gpuaas-api", "gpuaas-worker", "gpuaas-node-agent", "gpuaas-cluster-agent"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", "reference", program+".md"))
		require.NoError(t, err)
		read := variablesOf(string(text))
		require.NotEmpty(t, read, program)
		section := "environment"
		if !strings.Contains(string(text), "\n## Environment\n") {
			section = "configuration"
		}
		link := fmt.Sprintf("[%s](%s.md#%s)", program, program, section)
		for name, means := range read {
			if all[name] == nil {
				all[name] = &variable{means: map[string][]string{}}
			}
			all[name].programs = append(all[name].programs, link)
			all[name].means[means] = append(all[name].means[means], program)
		}
	}
	checkPage(t, "configuration.md", configurationPage(all))
}

// variablesOf returns the variables in the tables of a reference page with their descriptions.
func variablesOf(page string) map[string]string {
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[A-Z][A-Z0-9_]+`(?:, `[A-Z0-9_]+`)*) \\|(?:.*\\|)? ([^|]+) \\|$").FindAllStringSubmatch(page, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			found[strings.Trim(name, "`")] = m[2]
		}
	}
	if len(found) == 0 { // the page of the agent lists names
		_, list, _ := strings.Cut(page, "\n## Configuration\n")
		list, _, _ = strings.Cut(list, "\n## ")
		for _, name := range regexp.MustCompile(`\b[A-Z]+(?:_[A-Z]+)+\b`).FindAllString(list, -1) {
			found[name] = "See [onboarding](../onboarding.md#variables)."
		}
	}
	return found
}

func configurationPage(all map[string]*variable) string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Generated from the pages of the programs. Run ./task gen. -->

Every variable of the environment that the programs read, with the programs that read it. The page of a program also has the
defaults, the flags and the exit codes. ` + "`gpuaas`" + ` itself reads the variables in [its reference](gpuaas.md).

| variable | programs | description |
| --- | --- | --- |
`)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, strings.Join(v.programs, ", "), v.describe())
	}
	return b.String()
}

// describe returns the description, or each with its programs if they differ.
func (v variable) describe() string {
	var all []string
	for _, text := range slices.Sorted(maps.Keys(v.means)) {
		if len(v.means) > 1 {
			text = "For " + strings.Join(v.means[text], " and ") + ": " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestVariablesOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]string{"GPUAAS_ENV": "The name.", "GPUAAS_KEY": "A key.", "GPUAAS_KEY_FILE": "A key.", "HOME": "Two columns."}, variablesOf(
		"| variable | default | description |\n| --- | --- | --- |\n| `GPUAAS_ENV` | required | The name. |\n| `GPUAAS_KEY`, `GPUAAS_KEY_FILE` | none | A key. |\n"+
			"| `HOME` | Two columns. |\n| `--flag` | not a variable |\n"))
	require.Equal(t, map[string]string{"GPUAAS_ENV": "See [onboarding](../onboarding.md#variables)."}, variablesOf("\n## Configuration\n\nGPUAAS_ENV (text)\n\n## Examples\n\nGPUAAS_X\n"))
}
