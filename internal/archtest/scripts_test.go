package archtest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// rawValues returns the lines of a script's template that contain a value in any form
// other than name={{sh .Value}}. Conditions, comments and templates contain no value.
func rawValues(text string) (lines []string) {
	quoted := regexp.MustCompile(`^([a-z_]+=)\{\{sh \.[A-Za-z]+(\.[A-Za-z]+)*\}\}$`)
	noValue := regexp.MustCompile(`\{\{-? ?(if [^{}]*|else( if [^{}]*)?|end|template "[a-z]+" \.|define "[a-z]+"|/\*[^{}]*(\{\{[^{}]*\}\}[^{}]*)*\*/) ?-?\}\}`)
	for line := range strings.Lines(text) {
		line = noValue.ReplaceAllString(strings.TrimSuffix(line, "\n"), "")
		if strings.Contains(line, "{{") && !quoted.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A shell script that is a template contains each value as name={{sh .Value}} on a line
// of its own, so that no value is between quotes, in a comment, or unquoted. A
// here-document could still contain such a line, so there is none.
func TestScriptsQuoteValues(t *testing.T) {
	t.Parallel()
	templates := 0
	files(t, func(path, text string) {
		if !strings.HasSuffix(path, ".sh.tmpl") {
			return
		}
		templates++
		assert.Empty(t, rawValues(text), "%s: a value must be written as name={{sh .Value}} on a line of its own", path)
		assert.NotContains(t, text, "<<", "%s: a template must not contain a here-document", path)
	})
	assert.Positive(t, templates)
	for _, bad := range []string{"{{.X}}", "x={{.X}}", `x="{{sh .X}}"`, "echo {{sh .X}}", "# {{sh .X}}", "\tx={{sh .X}}", "x={{sh .X}} y", "x={{sh .X | html}}",
		"x={{printf .X}}", "x={{sh .X}}{{.Y}}", "{{if .X}}{{.X}}{{end}}", "{{with .X}}x={{sh .}}{{end}}", "{{template \"values\" .X}}{{.X}}"} {
		assert.NotEmpty(t, rawValues(bad), bad)
	}
	assert.Empty(t, rawValues("{{if .X}}\nx={{sh .X}}\n{{- else}}\ny={{sh .Y.Z}}\n{{end}}\n{{template \"values\" .}}\n"))
}
