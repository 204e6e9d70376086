package browsertest

import (
	"fmt"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
)

// observe keeps what a page must not do: open a dialog, throw an exception, or log an error,
// which includes each violation of its content security policy.
func (p *Page) observe(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		p.add("dialog: %s", e.Message)
		go p.dismiss()
	case *runtime.EventExceptionThrown:
		p.add("exception: %s", e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			p.add("console.%s", e.Type)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Source == log.EntrySourceSecurity {
			p.add("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
}

func (p *Page) add(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// Problems returns what the tab's pages did since the last call and must not do: dialogs,
// exceptions, errors on the console, and violations of the content security policy.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.problems
	p.problems = nil
	return all
}
