package console

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

// rowOf is a JavaScript expression for the row of a node among what needs attention.
func rowOf(host string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('table.attention tbody tr')].find(r => r.innerText.includes(%q))`, host)
}

// blocked starts a node with a workload that does not end at a signal, and its drain.
func blocked(t *testing.T, host string) (finish func()) {
	t.Helper()
	node(t, host)
	finish = busy(t, host)
	gpuaas(t, "node", "drain", host, "--deadline", "2s", "--reason", "RMA-4411", "--yes", "--no-wait")
	return finish
}

// choose follows the button of a decision in the row of a node.
func (p page) choose(host string, d lifecycle.Decision) {
	p.T.Helper()
	p.Wait("the button "+string(d), fmt.Sprintf(`(b => b && (b.click(), true))([...(%s || document.createElement('p')).querySelectorAll('a.button')].find(b => b.innerText.trim() === %q))`,
		rowOf(host), string(d)))
	p.Wait("the page of the decision", `!!document.querySelector('main form [name=reason]')`)
}

// submit sends the form of the page with the reason, by its button. It types the host name if the
// form asks for it.
func (p page) submit(host, reason string) {
	p.T.Helper()
	p.fill("reason", reason)
	if browsertest.Evaluate[bool](p.Page, `!!document.querySelector('[name=typed]')`) {
		p.fill("typed", host)
	}
	p.Click("main form button[type=submit]", "")
}

// decided requires that the audit trail has one decision, made through the interface via.
func decided(t *testing.T, host string, d lifecycle.Decision, reason, via string) {
	t.Helper()
	var list struct{ Events []audit.Row }
	require.True(t, read(t, &list, "audit", "--node", host, "--action", audit.Decision))
	require.Len(t, list.Events, 1)
	e := list.Events[0]
	require.Equal(t, []string{string(d), reason, via, "admin-token"}, []string{e.Detail["decision"], e.Reason, e.Via, e.Actor})
}

func ended(t *testing.T, host string, s lifecycle.OperationState) {
	t.Helper()
	eventually(t, "the operation of "+host+" ends", func() bool { return operation(t, host).Operation.Status.Ended() })
	require.Equal(t, s, operation(t, host).Operation.Status)
}

// TestParkedDrain: drains that cannot end appear on the open overview, its buttons end them, and
// they disappear, all without a reload of the overview.
func TestParkedDrain(t *testing.T) {
	needStack(t)
	overview := visit(t, "/")
	overview.mark()
	cases := []struct {
		host     string
		decision lifecycle.Decision
		ends     lifecycle.OperationState
		finish   func() // nil: the workload does not end
	}{
		{host: "gpu-0417", decision: lifecycle.DecisionExtend, ends: lifecycle.OperationCompleted},
		{host: "gpu-0423", decision: lifecycle.DecisionCancel, ends: lifecycle.OperationCanceled},
		{host: "gpu-0608", decision: lifecycle.DecisionForce, ends: lifecycle.OperationCompleted},
	}
	for i, c := range cases {
		finish := blocked(t, c.host)
		if c.decision == lifecycle.DecisionExtend {
			cases[i].finish = finish
		}
		overview.Wait("a row of "+c.host, `!!`+rowOf(c.host))
	}
	overview.screenshot("console-overview")
	pictures(t, cases[0].host)
	for _, c := range cases {
		p := visit(t, "/")
		p.choose(c.host, c.decision)
		if c.finish != nil {
			c.finish()
		}
		p.submit(c.host, "INC-77 "+string(c.decision))
		ended(t, c.host, c.ends)
		decided(t, c.host, c.decision, "INC-77 "+string(c.decision), "console")
		overview.Wait("no row of "+c.host, `!`+rowOf(c.host))
		p.Close()
	}
	overview.notReloaded()
}

// pictures stores pictures of the pages of a node and of its operation.
func pictures(t *testing.T, host string) {
	t.Helper()
	p := visit(t, "/")
	defer p.Close()
	for name, path := range map[string]string{"operation": "/operations/" + operation(t, host).Operation.OperationID, "node": "/nodes/" + show(t, host).ID} {
		p.open(path)
		p.sees(host)
		p.screenshot("console-" + name)
	}
}

// press presses the tab key until the focused element has a property.
func (p page) press(what, focused string) {
	p.T.Helper()
	const most = 400
	for range most {
		if browsertest.Evaluate[bool](p.Page, `(e => `+focused+`)(document.activeElement)`) {
			return
		}
		p.Press(kb.Tab)
	}
	require.Fail(p.T, "the tab key does not reach "+what)
}

// TestKeyboard: a parked drain is ended with the keyboard alone.
func TestKeyboard(t *testing.T) {
	needStack(t)
	const host = "con-keys"
	blocked(t, host)
	p := visit(t, "/")
	p.Wait("a row of "+host, `!!`+rowOf(host))
	p.press("the button", fmt.Sprintf(`e.closest('tr') === (%s) && e.innerText.trim() === 'cancel'`, rowOf(host)))
	p.Press(kb.Enter)
	p.Wait("the page of the decision", `!!document.querySelector('main form [name=reason]')`)
	p.press("the reason", `e.name === 'reason'`)
	p.Press("not now")
	p.press("the button of the form", `e.closest('main') && e.type === 'submit'`)
	p.Press(kb.Enter)
	ended(t, host, lifecycle.OperationCanceled)
	decided(t, host, lifecycle.DecisionCancel, "not now", "console")
}

// TestWithoutScript: a parked drain is ended in a browser that runs no scripts.
func TestWithoutScript(t *testing.T) {
	needStack(t)
	const host = "con-plain"
	blocked(t, host)
	eventually(t, "the drain is parked", func() bool { return operation(t, host).Operation.Stuck != nil })
	p := visit(t, "/", page.disableScript)
	p.open("/")
	require.False(t, browsertest.Evaluate[bool](p.Page, `document.querySelector('#age')?.innerText === 'Up to date.'`), "a script runs")
	p.choose(host, lifecycle.DecisionCancel)
	p.submit(host, "not now")
	ended(t, host, lifecycle.OperationCanceled)
	decided(t, host, lifecycle.DecisionCancel, "not now", "console")
}

func (p page) disableScript() { p.NoScript() }

// TestStalePage: a decision from a page that is outdated is refused with the state now, and
// changes nothing.
func TestStalePage(t *testing.T) {
	needStack(t)
	const host = "con-stale"
	blocked(t, host)
	p := visit(t, "/")
	p.choose(host, lifecycle.DecisionForce)
	gpuaas(t, "op", "cancel", host, "--reason", "another operator", "--yes")
	ended(t, host, lifecycle.OperationCanceled)
	p.submit(host, "INC-78")
	p.sees("Nothing was done.")
	decided(t, host, lifecycle.DecisionCancel, "another operator", "api")
}
