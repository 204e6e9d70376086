package console

import (
	_ "embed"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

// axe is axe-core 4.14.1 of Deque Systems (MPL-2.0, testdata/axe.LICENSE), unchanged. It checks
// the accessibility of a page.
//
//go:embed testdata/axe.min.js
var axe string

// violations returns what axe finds on the page: the rule, its help, and the first elements.
func (p page) violations() []string {
	p.T.Helper()
	p.Do(chromedp.Evaluate[chromedp.Void](axe))
	return browsertest.Evaluate[[]string](p.Page, `axe.run(document, {resultTypes: ['violations']}).then(r =>
		r.violations.map(v => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map(n => n.html).join(' | ')))`)
}

// TestAccessible: axe finds nothing on any page, in light and in dark colors.
func TestAccessible(t *testing.T) {
	p := visit(t, "/")
	host := "axe-01"
	node(t, host)
	for _, dark := range []bool{false, true} {
		p.Dark(dark)
		for _, path := range everyPage(t, host) {
			p.open(path)
			require.Empty(t, p.violations(), "%s, dark: %v", path, dark)
		}
	}
	require.Empty(t, p.unexpected())
}

// TestPlantedViolations: axe finds what is wrong with a page.
func TestPlantedViolations(t *testing.T) {
	p := visit(t, "/")
	for rule, body := range map[string]string{
		"label":          `main.appendChild(document.createElement('input'))`,
		"color-contrast": `const e = main.appendChild(document.createElement('p')); e.textContent = 'gray on gray'; e.style.color = '#777'; e.style.backgroundColor = '#888'`,
		"button-name":    `main.appendChild(document.createElement('button'))`,
	} {
		p.open("/")
		p.Do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{const main = document.querySelector('main'); %s}`, body)))
		require.Contains(t, fmt.Sprint(p.violations()), rule+":")
	}
	p.Problems() // whatever the planted elements caused
}
