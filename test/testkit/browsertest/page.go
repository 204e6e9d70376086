package browsertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// pageTimeout bounds the wait for a page on a busy machine.
const pageTimeout = 3 * time.Minute

// The size of the pages.
const (
	PageWidth  = 1440
	PageHeight = 1400
)

// Page is a tab of the browser. Keep is the folder for screenshots of pages that a test rejects.
type Page struct {
	T     *testing.T
	Keep  string
	ctx   context.Context //nolint:containedctx // chromedp identifies a tab by its context
	close func()

	mu       sync.Mutex
	problems []string
}

// Open opens a tab until Close is called or the test ends. A tab that is apart shares no cookies
// with other tabs.
func (b *Browser) Open(t *testing.T, keep string, apart bool) *Page {
	t.Helper()
	var options []chromedp.ContextOption
	if apart {
		options = append(options, chromedp.WithNewBrowserContext())
	}
	b.tabs <- struct{}{}
	ctx, cancel := chromedp.NewContext(b.ctx, options...)
	p := &Page{T: t, Keep: keep, ctx: ctx, close: sync.OnceFunc(func() { cancel(); <-b.tabs })}
	t.Cleanup(p.Close)
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, p.observe))
	p.Do(chromedp.EmulateViewport(PageWidth, PageHeight), focused())
	return p
}

// focused makes the page handle keys as if its tab were in the foreground.
func focused() chromedp.Action[chromedp.Void] {
	return call(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
}

// call is the action that sends a command of the DevTools protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// dismiss closes a dialog, for which scripts wait.
func (p *Page) dismiss() {
	_ = chromedp.Do(p.ctx, call(page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})) // the tab may be closed
}

// Close closes the tab.
func (p *Page) Close() { p.close() }

// Navigate loads an address.
func (p *Page) Navigate(address string) {
	p.T.Helper()
	p.Do(chromedp.Navigate(address))
}

// Dark sets what the page is said to prefer: dark colors or light ones.
func (p *Page) Dark(dark bool) {
	p.T.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	p.Do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}}))
}

// NoScript makes the pages that are loaded from now on run no script. Expressions of the test
// still run.
func (p *Page) NoScript() {
	p.T.Helper()
	p.Do(call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
}

// Do runs steps in the tab.
func (p *Page) Do(steps ...chromedp.Action[chromedp.Void]) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	require.NoError(p.T, chromedp.Do(ctx, steps...))
}

// Evaluate returns the value of a JavaScript expression.
func Evaluate[T any](p *Page, expression string) T {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(p.T, err, "%.200s", expression)
	return v
}

// Wait waits until a JavaScript expression is true.
func (p *Page) Wait(what, expression string) {
	p.T.Helper()
	if ok, err := p.Becomes(expression, pageTimeout); !ok {
		require.Fail(p.T, "not on the page: "+what, "The last error is %v. A screenshot is in %s. The page shows:\n%s", err, p.keep(),
			Evaluate[string](p, `document.body.innerText`))
	}
}

// Becomes reports whether a JavaScript expression becomes true within a time, and the last error. It
// polls from outside of the page, because a busy browser slows down the timers of pages.
func (p *Page) Becomes(expression string, within time.Duration) (ok bool, err error) {
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

// keep stores a screenshot of a page that a test rejects, and returns its path.
func (p *Page) keep() string {
	p.T.Helper()
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.T, err)
	path, err := filepath.Abs(filepath.Join(p.Keep, filepath.Base(p.T.Name())+".png"))
	require.NoError(p.T, err)
	require.NoError(p.T, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(p.T, os.WriteFile(path, picture, 0o644))
	return path
}

// Click clicks the first element that is shown and enabled, matches a selector, and whose
// text starts with label.
func (p *Page) Click(selector, label string) {
	p.T.Helper()
	p.Wait(selector+" "+label, fmt.Sprintf(`(e => e && (e.click(), true))([...document.querySelectorAll(%q)].find(e =>
		e.checkVisibility({visibilityProperty: true, opacityProperty: true}) && !e.disabled && e.innerText.trim().startsWith(%q)))`, selector, label))
}

// Type replaces the text of the field that matches a selector, key by key. A line break is the
// key that submits the form.
func (p *Page) Type(selector, text string) {
	p.T.Helper()
	p.Wait(selector, fmt.Sprintf(`(e => !!e && (e.focus(), e.select?.(), document.activeElement === e))(document.querySelector(%q))`, selector))
	p.Press(text)
}

// Press presses keys, where the focus is.
func (p *Page) Press(keys string) {
	p.T.Helper()
	p.Do(chromedp.KeyEvent(keys))
}
