package webui

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

// main is the page without the menus of the Web UI.
const main = "main"

// page is a tab of the browser.
type page struct{ *browsertest.Page }

// open opens a tab until Close is called or the test ends.
func open(t *testing.T, address string) *page {
	t.Helper()
	p := &page{browser.Open(t, filepath.Join(stacktest.Root, ".cache", "test", "webui"), false)}
	p.Navigate(address)
	return p
}

// metadata opens the page with the details of a run. The page asks the worker for them once, and stays
// without them if the worker does not respond in time, so it is opened again until it shows their heading.
func (p *page) metadata(timeline string, a lifecycle.Action, host string) {
	p.T.Helper()
	const limit = time.Minute // which a loaded machine takes to show a page
	stack.Eventually(p.T, "the page has the details of the run", func() bool {
		p.Navigate(metadataOf(timeline))
		ok, _ := p.Becomes(includes(string(a)+" "+host+": "), limit)
		return ok
	})
}

// metadataOf is the address of the page with the details of a run.
func metadataOf(timeline string) string {
	return strings.TrimSuffix(timeline, "/timeline") + "/user-metadata"
}

// frames is the text that the page and its frames show. The frames render the Markdown, with typographic
// apostrophes outside of code.
const frames = `[document.body, ...[...document.querySelectorAll('iframe')].map(f => f.contentDocument && f.contentDocument.body)].filter(b => b).map(b => b.innerText).join('\n').replaceAll('\u2019', "'")`

// sees waits until the page shows a text, in any frame.
func (p *page) sees(text string) {
	p.T.Helper()
	p.Wait("the page shows "+text, includes(oneLine(text)))
}

// includes is a JavaScript expression that is true if the page shows a text.
func includes(text string) string {
	return fmt.Sprintf(`(%s).replace(/\s+/g, ' ').includes(%q)`, frames, text)
}

// lacks requires that the page does not show a text.
func (p *page) lacks(text string) {
	p.T.Helper()
	require.NotContains(p.T, oneLine(p.text()), oneLine(text))
}

// text returns the text of the page and of its frames.
func (p *page) text() string {
	p.T.Helper()
	return browsertest.Evaluate[string](p.Page, frames)
}

// find returns the first part of the page's text that matches a regular expression.
func (p *page) find(expr string) string {
	p.T.Helper()
	found := regexp.MustCompile(expr).FindString(p.text())
	require.NotEmpty(p.T, found, expr)
	return found
}

// shown is a JavaScript function that reports whether a person sees an element. The Web UI
// keeps a second, hidden copy of its buttons and dialogs for narrow windows.
const shown = `(e => e.checkVisibility({visibilityProperty: true, opacityProperty: true}))`

// paste pastes JSON into the editor that matches a selector, like the clipboard: typed keys
// would need the tab in the foreground. The editor indents it.
func (p *page) paste(selector, text string) {
	p.T.Helper()
	p.Wait(selector, fmt.Sprintf(`(e => {
		if (!e || !%s(e) || !e.isContentEditable) return false
		const clipboardData = new DataTransfer()
		clipboardData.setData('text/plain', %q)
		e.dispatchEvent(new ClipboardEvent('paste', {clipboardData, bubbles: true, cancelable: true}))
		return true
	})(document.querySelector(%q))`, shown, text, selector))
	p.Wait("the pasted text", fmt.Sprintf(`document.querySelector(%q).textContent.replace(/\s/g, '') === %q`,
		selector, strings.ReplaceAll(text, " ", "")))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
