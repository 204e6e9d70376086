package webui

import (
	"context"
	"fmt"
	osexec "os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// pageTimeout bounds the wait for a page on a busy machine.
const pageTimeout = conditionTimeout

// The size of the pages. At this size the details of most parked runs fit on one page.
const (
	pageWidth  = 1440
	pageHeight = 1400
)

// findChromium returns the path of the browser, or "" without one. tools/need-chromium.sh
// looks in the same places.
func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium"} {
		if path, err := osexec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// startBrowser starts one browser for all tests. stop ends it.
func startBrowser(path, dir string) (ctx context.Context, stop func(), err error) {
	allocator, stopProcess := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-background-timer-throttling", true), chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.UserDataDir(dir), chromedp.WindowSize(pageWidth, pageHeight))
	ctx, stopTab := chromedp.NewContext(allocator)
	stop = func() { stopTab(); stopProcess() }
	if err = chromedp.Do(ctx); err != nil {
		err = fmt.Errorf("starting %s: %w", path, err)
	}
	return ctx, stop, err
}

// page is a tab of the browser.
type page struct {
	t     *testing.T
	ctx   context.Context //nolint:containedctx // chromedp identifies a tab by its context
	close func()
}

// tabs bounds the number of open tabs, because pages that load compete for processors.
var tabs = make(chan struct{}, 4)

// open opens a tab until close is called or the test ends.
func open(t *testing.T, address string) *page {
	t.Helper()
	tabs <- struct{}{}
	ctx, cancel := chromedp.NewContext(browser)
	closed := sync.OnceFunc(func() { cancel(); <-tabs })
	t.Cleanup(closed)
	require.NoError(t, chromedp.Do(ctx))
	p := &page{t, ctx, closed}
	p.do(chromedp.EmulateViewport(pageWidth, pageHeight))
	p.navigate(address)
	return p
}

func (p *page) navigate(address string) {
	p.t.Helper()
	p.do(chromedp.Navigate(address))
}

// do runs steps in the tab.
func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, steps...))
}

// wait waits until a JavaScript expression is true.
func (p *page) wait(what, expression string) {
	p.t.Helper()
	if ok, err := p.becomes(expression, pageTimeout); !ok {
		require.Fail(p.t, "not on the page: "+what, "The last error is %v. A screenshot is in %s. The page shows:\n%s", err, p.keep(), p.text())
	}
}

// becomes reports whether a JavaScript expression becomes true within a time, and the last error. It
// polls from outside of the page, because a busy browser slows down the timers of pages.
func (p *page) becomes(expression string, within time.Duration) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err = chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if err == nil && ok {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-tick.C:
		}
	}
}

// metadata opens the page with the details of a run. The page asks the worker for them once, and stays
// without them if the worker does not respond in time, so it is opened again until it shows their heading.
func (p *page) metadata(timeline string, a lifecycle.Action, host string) {
	p.t.Helper()
	const limit = 20 * time.Second
	eventually(p.t, "the page has the details of the run", func() bool {
		p.navigate(metadataOf(timeline))
		ok, _ := p.becomes(includes(string(a)+" "+host+": "), limit)
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
	p.t.Helper()
	p.wait("the page shows "+text, includes(oneLine(text)))
}

// includes is a JavaScript expression that is true if the page shows a text.
func includes(text string) string {
	return fmt.Sprintf(`(%s).replace(/\s+/g, ' ').includes(%q)`, frames, text)
}

// lacks requires that the page does not show a text.
func (p *page) lacks(text string) {
	p.t.Helper()
	require.NotContains(p.t, oneLine(p.text()), oneLine(text))
}

// text returns the text of the page and of its frames.
func (p *page) text() string {
	p.t.Helper()
	s, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](frames))
	require.NoError(p.t, err)
	return s
}

// find returns the first part of the page's text that matches a regular expression.
func (p *page) find(expr string) string {
	p.t.Helper()
	found := regexp.MustCompile(expr).FindString(p.text())
	require.NotEmpty(p.t, found, expr)
	return found
}

// shown is a JavaScript function that reports whether a person sees an element. The Web UI
// keeps a second, hidden copy of its buttons and dialogs for narrow windows.
const shown = `(e => e.checkVisibility({visibilityProperty: true, opacityProperty: true}))`

// click clicks the first element that is shown and enabled, matches a selector, and whose
// text starts with label.
func (p *page) click(selector, label string) {
	p.t.Helper()
	p.wait(selector+" "+label, fmt.Sprintf(`(e => e && (e.click(), true))([...document.querySelectorAll(%q)].find(e =>
		%s(e) && !e.disabled && e.innerText.trim().startsWith(%q)))`, selector, shown, label))
}

// paste pastes JSON into the editor that matches a selector, like the clipboard: typed keys
// would need the tab in the foreground. The editor indents it.
func (p *page) paste(selector, text string) {
	p.t.Helper()
	p.wait(selector, fmt.Sprintf(`(e => {
		if (!e || !%s(e) || !e.isContentEditable) return false
		const clipboardData = new DataTransfer()
		clipboardData.setData('text/plain', %q)
		e.dispatchEvent(new ClipboardEvent('paste', {clipboardData, bubbles: true, cancelable: true}))
		return true
	})(document.querySelector(%q))`, shown, text, selector))
	p.wait("the pasted text", fmt.Sprintf(`document.querySelector(%q).textContent.replace(/\s/g, '') === %q`,
		selector, strings.ReplaceAll(text, " ", "")))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
