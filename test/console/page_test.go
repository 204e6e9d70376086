package console

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

// address is the URL of a page of the console.
func address(path string) string { return stack.Getenv("GPUAAS_API_URL") + "/console" + path }

// page is a tab with the console.
type page struct{ *browsertest.Page }

// visit opens a page of the console, logged in. The test fails at its end if a page opened a
// dialog, logged an error or violated its content security policy.
func visit(t *testing.T, path string, before ...func(page)) page {
	t.Helper()
	needStack(t)
	p := page{browser.Open(t, filepath.Join(root, ".cache", "test", "console"), true)}
	t.Cleanup(func() { require.Empty(t, p.unexpected()) })
	for _, prepare := range before {
		prepare(p)
	}
	p.Navigate(address(path))
	p.Wait("the login", `!!document.querySelector('input[name=token]')`)
	p.Type("input[name=token]", stack.Getenv("GPUAAS_API_TOKEN")+kb.Enter)
	p.Wait("the page after the login", `!!document.querySelector('main[data-rev]') && !document.querySelector('input[name=token]')`)
	return p
}

// unexpected returns the problems of the tab's pages, except that the browser reports the status of
// a page that the test expects to be an error.
func (p page) unexpected() []string {
	return slices.DeleteFunc(p.Problems(), func(s string) bool {
		return strings.Contains(s, "status of 404") || strings.Contains(s, "status of 409") || strings.Contains(s, "status of 503")
	})
}

// open opens another page in the tab.
func (p page) open(path string) {
	p.T.Helper()
	p.Navigate(address(path))
	p.Wait("the page", `!!document.querySelector('main')`)
}

// has is a JavaScript expression that is true if the page shows a text.
func has(text string) string {
	return fmt.Sprintf(`document.body.innerText.replace(/\s+/g, ' ').includes(%q)`, strings.Join(strings.Fields(text), " "))
}

// sees waits until the page shows a text.
func (p page) sees(text string) {
	p.T.Helper()
	p.Wait("the page shows "+text, has(text))
}

// fill types a text into the field with a name.
func (p page) fill(name, text string) {
	p.T.Helper()
	p.Type(fmt.Sprintf("[name=%q]", name), text)
}

// mark plants a value in the window, which a reload removes.
func (p page) mark() {
	p.T.Helper()
	p.Do(chromedp.Evaluate[chromedp.Void](`window.planted = true`))
}

// notReloaded requires that the page was not loaded again since mark.
func (p page) notReloaded() {
	p.T.Helper()
	require.True(p.T, browsertest.Evaluate[bool](p.Page, `window.planted === true`))
}

// screenshot stores a picture of the page as NAME.png, if the tests run with -screenshots.
func (p page) screenshot(name string) {
	p.T.Helper()
	p.Screenshot(*screenshots, name, "body")
}
