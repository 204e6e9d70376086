// Package browsertest opens pages in Chromium for tests. sh tools/need-chromium.sh installs
// the browser.
package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/chromedp/chromedp"
)

// find returns the path of the browser, or "" without one. tools/need-chromium.sh
// looks in the same places.
func find() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// maxTabs is how many tabs are open at the same time: pages that load compete for processors.
const maxTabs = 4

// Browser is a running browser. Tests share it.
type Browser struct {
	ctx  context.Context //nolint:containedctx // chromedp identifies a browser by its context
	stop func()
	tabs chan struct{}
}

// Start starts the browser with an empty profile in the folder dir. The caller must call Stop,
// also after an error.
func Start(dir string) (*Browser, error) {
	path := find()
	if path == "" {
		return &Browser{stop: func() {}}, errors.New("no Chromium found; run sh tools/need-chromium.sh")
	}
	allocator, stopProcess := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-background-timer-throttling", true), chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.UserDataDir(dir))
	ctx, stopTab := chromedp.NewContext(allocator)
	b := &Browser{ctx: ctx, stop: func() { stopTab(); stopProcess() }, tabs: make(chan struct{}, maxTabs)}
	if err := chromedp.Do(ctx); err != nil {
		return b, fmt.Errorf("starting %s: %w", path, err)
	}
	return b, nil
}

// Stop ends the browser.
func (b *Browser) Stop() { b.stop() }
