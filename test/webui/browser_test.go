package webui

import (
	"context"
	"fmt"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// pageTimeout bounds the wait for a page on a busy machine.
const pageTimeout = time.Minute

// findChromium returns the path of the browser, or "" without one.
func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
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
		chromedp.UserDataDir(dir), chromedp.WindowSize(1280, 1000))
	ctx, stopTab := chromedp.NewContext(allocator)
	stop = func() { stopTab(); stopProcess() }
	if err = chromedp.Do(ctx); err != nil {
		err = fmt.Errorf("starting %s: %w", path, err)
	}
	return ctx, stop, err
}

// page is a tab of the browser on one run.
type page struct {
	t *testing.T
	// ctx is the tab.
	ctx context.Context
	// run is the address of the run, without its last segment.
	run string
}

// open opens a tab of the run whose page is at the given address.
func open(t *testing.T, address string) *page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	return &page{t, ctx, strings.TrimSuffix(address, "/timeline")}
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
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(100*time.Millisecond), chromedp.WithPollingTimeout(pageTimeout)))
	require.NoError(p.t, err, what)
}

// frames is the text of the page and of its frames, which render the Markdown.
const frames = `[document.body, ...[...document.querySelectorAll('iframe')].map(f => f.contentDocument && f.contentDocument.body)].filter(b => b).map(b => b.innerText).join('\n')`

// sees waits until the page shows a text, in any frame.
func (p *page) sees(text string) {
	p.t.Helper()
	p.wait("the page shows "+text, fmt.Sprintf(`(%s).replace(/\s+/g, ' ').includes(%q)`, frames, strings.Join(strings.Fields(text), " ")))
}

// text returns the text of the page and of its frames.
func (p *page) text() string {
	p.t.Helper()
	s, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](frames))
	require.NoError(p.t, err)
	return s
}

// picture stores a screenshot of the main part of the page in docs/images if the tests run
// with -pictures.
func (p *page) picture(name string) {
	p.t.Helper()
	if !*pictures {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	require.Less(p.t, len(png), 150<<10)
	require.NoError(p.t, os.WriteFile(filepath.Join("..", "..", "docs", "images", name+".png"), png, 0o644))
}

// click clicks the first element that is shown and matches a selector.
func (p *page) click(selector string) {
	p.t.Helper()
	p.wait(selector, fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.offsetParent && !e.disabled && (e.click(), true))`, selector))
}

// list is the page of a filtered list.
func (p *page) list(query string) string {
	workflows, _, _ := strings.Cut(p.run, "/workflows/")
	return workflows + "/workflows?query=" + url.QueryEscape(query)
}
