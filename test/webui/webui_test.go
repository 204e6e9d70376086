package webui

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/webui"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

// TestWebUI: for each reason, the page of a parked run says why it is parked and what to do,
// and an operator who follows the page ends the operation. The lists show the operations
// that are still parked.
func TestWebUI(t *testing.T) {
	stacktest.Need(t)
	t.Run("pages", func(t *testing.T) {
		for reason, s := range nodeScenes() {
			t.Run(reason, func(t *testing.T) {
				if s.slow {
					s.park(t, s.host) // before the other scenes, which are parallel
				}
				t.Parallel()
				if !s.slow {
					s.park(t, s.host)
				}
				s.follow(t, reason)
			})
		}
	})
	t.Run("lists", func(t *testing.T) { requireLists(t) })
	for reason, s := range outageScenes() {
		t.Run(reason, func(t *testing.T) {
			s.park(t, s.host)
			s.follow(t, reason)
		})
	}
}

// follow opens the page of the operation that is about to park, and does what it says.
func (s scene) follow(t *testing.T, reason string) {
	t.Helper()
	op := parked(t, s.host, reason, s.flags...)
	if s.flags == nil && op.Status == lifecycle.OperationParked {
		requireEverywhere(t, op)
	}
	p := open(t, op.WebURL)
	if s.timer == "" {
		p.requireTimer(*op.Stuck)
	} else {
		p.sees(s.timer)
	}
	if reason == lifecycle.ReasonDrainBlocked {
		p.requireVisible(reason + ", ")
		p.Screenshot(*screenshots, "timeline", main)
	}
	if s.details == nil {
		p.metadata(op.WebURL, op.Action, op.Host)
		p.requireDetails(*op.Stuck)
	} else {
		p.Navigate(metadataOf(op.WebURL))
		s.details(p, *op.Stuck)
	}
	p.Screenshot(*screenshots, reason, main)
	if s.resolve != nil {
		s.resolve(t, p, op)
	}
}

// requireTimer requires that the timeline says why the operation is parked and what to do.
func (p *page) requireTimer(stuck lifecycle.Stuck) {
	p.T.Helper()
	p.sees(stuck.Reason + ", ")
	p.sees(": gpuaas op show ")
}

// requireVisible requires that the beginning of the timer's summary is visible. The page
// shows it once the timer is older than the run was when it parked.
func (p *page) requireVisible(summary string) {
	p.T.Helper()
	p.Wait("the beginning of the timer's summary is visible", fmt.Sprintf(`[...document.querySelectorAll('*')].some(e => {
		if (e.children.length || !e.textContent.startsWith(%q)) return false
		e.scrollIntoView({block: 'center'})
		const r = e.getBoundingClientRect()
		return e === document.elementFromPoint(r.left + 5, r.top + r.height / 2)
	})`, summary))
	p.Do(chromedp.Evaluate[chromedp.Void](`scrollTo(0, 0)`))
}

// requireDetails requires that the details of the run show the reason, the phases, and
// the options with their commands, least harmful first.
func (p *page) requireDetails(stuck lifecycle.Stuck) {
	p.T.Helper()
	p.sees("Waiting on: " + string(stuck.WaitingOn))
	p.sees(strings.Trim(text.Quote(stuck.Message, 300), "`"))
	p.sees("(" + stuck.Reason + ")")
	require.Regexp(p.T, ` — \w+ since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`, p.text())
	at, resolvable := -1, false
	for _, o := range stuck.Options {
		p.sees(o.Does)
		_, shown, _ := strings.Cut(oneLine(p.text()), "Options, least harmful first:")
		next := strings.Index(shown, oneLine(o.Command))
		require.Greater(p.T, next, at, "%s is not the next option in:\n%s", o.Command, shown)
		at = next
		resolvable = resolvable || strings.HasPrefix(o.Command, "gpuaas op ")
	}
	if resolvable {
		p.sees(`"decision":`)
	}
}

// requireEnd requires that the details of an abandoned run show its status, and the command
// that restores the node.
func (p *page) requireEnd(stuck lifecycle.Stuck, status string) {
	p.T.Helper()
	p.sees(status)
	p.sees(stuck.Options[0].Command)
}

// update sends the resolve update in the dialog of the page.
func (p *page) update(input string) {
	p.T.Helper()
	p.Click(`button[aria-controls=workflow-actions]`, "")
	p.Click(`[data-testid=update-button]`, "")
	const dialog = `#update-confirmation-modal[open]`
	p.Click(dialog+` [data-testid=update-select-button]`, "")
	p.Click(dialog+` [role=option]`, "resolve")
	p.paste(dialog+` .cm-content`, input)
	p.Screenshot(*screenshots, "resolve", dialog)
	p.Click(dialog+` [data-testid=confirm-modal-button]`, "")
}

// requireLists requires that the links of gpuaas stuck open the lists of the operations that
// it lists, which show host, action, status and reason.
func requireLists(t *testing.T) {
	t.Helper()
	var list wire.StuckList
	require.True(t, stack.Read(t, &list, "stuck"))
	require.NotEmpty(t, list.Stuck)
	link := func(view string, args ...string) string {
		return regexp.MustCompile("Web UI, " + regexp.QuoteMeta(view) + `: (\S+)`).FindStringSubmatch(stack.Run(t, append([]string{"stuck"}, args...)...))[1]
	}
	all := link("all parked operations")
	p := open(t, all)
	p.Do(chromedp.Evaluate[chromedp.Void](columns))
	p.Navigate(all)
	for _, op := range list.Stuck {
		p.Wait("a row of "+op.Host, fmt.Sprintf(`[...document.querySelectorAll('tr')].some(r => %q.split('|').every(c => r.innerText.includes(c)))`,
			strings.Join([]string{"RUNNING", "node:" + op.Host + ":", workflowType(t, op.Action), op.Stuck.Reason}, "|")))
	}
	p.lacks("node:" + scenes()[lifecycle.ReasonDrainBlocked].host + ":")
	p.Do(chromedp.EmulateViewport(browsertest.PageWidth, 800))
	p.Screenshot(*screenshots, "list", main)

	mismatch, failed := scenes()[lifecycle.ReasonSKUMismatch].host, scenes()["task_failed"].host
	p.Navigate(link("operations of "+mismatch, "--stuck-reason", lifecycle.ReasonSKUMismatch))
	p.sees("node:" + mismatch + ":")
	p.lacks("node:" + failed + ":")
	for _, view := range webui.Views()[1:] {
		p.Navigate(view.URL(strings.Split(all, "?")[0]))
		for _, op := range list.Stuck {
			if strings.HasSuffix(view.Title, " "+string(op.Stuck.WaitingOn)) {
				p.sees("node:" + op.Host + ":")
			}
		}
	}

	p.Navigate(strings.Split(all, "?")[0])
	p.sees("node:" + failed + ":")
	// One run makes many rounds. One run is open, and the start of the stack and a scene trigger one each.
	most := 3 + int(time.Since(stack.Started)/(lifecycle.Rounds*lifecycle.RoundInterval))
	require.LessOrEqual(t, strings.Count(p.text(), "fleet:"+lifecycle.ScheduleReclaim), most, "the reclaimer's runs hide the operations")
}

// columns selects the columns of the list, as its menu does.
const columns = `localStorage.setItem('namespace-workflow-table-columns', JSON.stringify({gpuaas:
	['Status', 'Workflow ID', 'Type', 'StuckReason', 'Attention'].map(label => ({label}))}))`

func workflowType(t *testing.T, a lifecycle.Action) string {
	t.Helper()
	plan, found := lifecycle.PlanOf(a, lifecycle.Options{})
	require.True(t, found)
	return plan.Workflow
}
