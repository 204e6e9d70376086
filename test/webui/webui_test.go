package webui

import (
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// requireStory requires that the pages of a parked run show the reason, the options with
// their commands, and an input for the resolve update, which it returns.
func (p *page) requireStory(stuck lifecycle.Stuck) (argument string) {
	p.t.Helper()
	p.navigate(p.run + "/timeline")
	p.sees("Parked (" + stuck.Reason + "):")
	p.picture(stuck.Reason + "-timeline")
	p.navigate(p.run + "/user-metadata")
	p.sees("Waiting on: " + string(stuck.WaitingOn))
	for _, o := range stuck.Options {
		p.sees(o.Command)
		p.sees(o.Does)
	}
	p.sees(stuck.Message)
	p.sees(`"decision":`)
	p.picture(stuck.Reason)
	found := regexp.MustCompile(`\{"operation_id":.*\}`).FindString(p.text())
	require.NotEmpty(p.t, found)
	return strings.NewReplacer(lifecycle.ReasonPlaceholder, "as the page says", "YOUR NAME", "alice").Replace(found)
}

// resolve sends the resolve update in the dialog of the page.
func (p *page) resolve(argument string) {
	p.t.Helper()
	p.click(`button[aria-controls=workflow-actions]`)
	p.click(`[data-testid=update-button]`)
	p.click(`#update-confirmation-modal [data-testid=update-select-button]`)
	p.wait("the updates are listed", `[...document.querySelectorAll('#update-select-select [role=option]')].some(e => e.innerText.trim().startsWith('resolve') && (e.click(), true))`)
	p.do(chromedp.Click(`#update-confirmation-modal .cm-content`), chromedp.SendKeys(`#update-confirmation-modal .cm-content`, argument))
	p.picture("resolve")
	p.click(`#update-confirmation-modal [data-testid=confirm-modal-button]`)
}

// TestDrainBlocked: a workload does not end before the deadline of a drain. The shown
// input, pasted into the dialog of the page, continues the drain.
func TestDrainBlocked(t *testing.T) {
	node(t, "gpu-17", "cpu-dev")
	gate := workload(t, "gpu-17")
	gpuaas(t, "node", "drain", "gpu-17", "--deadline", "2s", "--reason", "RMA-4411", "--yes", "--no-wait")
	p, stuck := parked(t, "gpu-17", lifecycle.ReasonDrainBlocked)
	argument := p.requireStory(stuck)
	require.NoError(t, writeFile(gate))
	p.resolve(argument)
	eventually(t, "the drain continues", func() bool { return show(t, "gpu-17").State == lifecycle.NodeDrained })
	require.Contains(t, gpuaas(t, "node", "history", "gpu-17"), "drain")
}

// TestSKUMismatch: a machine that is not what it was registered as.
func TestSKUMismatch(t *testing.T) {
	gpuaas(t, "sku", "add", "big", "--min-cpus", "512")
	node(t, "gpu-18", "big")
	gpuaas(t, "node", "provision", "gpu-18", "--no-wait")
	p, stuck := parked(t, "gpu-18", lifecycle.ReasonSKUMismatch)
	p.requireStory(stuck)
	gpuaas(t, "op", "cancel", "gpu-18", "--reason", "wrong machine")
}

// TestAgentSilent: the agent does not take its task. The time limit of the activity is
// shortened, as an operator of Temporal can, so that the test does not wait for it.
func TestAgentSilent(t *testing.T) {
	node(t, "gpu-19", "cpu-dev")
	killAgent(t, "gpu-19")
	gpuaas(t, "node", "drain", "gpu-19", "--yes", "--no-wait")
	c := dial(t)
	run := &common.WorkflowExecution{WorkflowId: lifecycle.NodeWorkflowID("gpu-19", show(t, "gpu-19").ID)}
	eventually(t, "the task is pending", func() bool {
		d, err := c.DescribeWorkflowExecution(t.Context(), run.GetWorkflowId(), "")
		return err == nil && len(d.GetPendingActivities()) == 1
	})
	_, err := c.WorkflowService().UpdateActivityOptions(t.Context(), soon(run))
	require.NoError(t, err)
	p, stuck := parked(t, "gpu-19", "agent_silent")
	p.requireStory(stuck)
	p.sees("The worker retries this phase")
}

// TestTaskLost: the node dies while it drains, so nobody knows what it did.
func TestTaskLost(t *testing.T) {
	node(t, "gpu-20", "cpu-dev")
	workload(t, "gpu-20")
	gpuaas(t, "node", "drain", "gpu-20", "--yes", "--no-wait")
	eventually(t, "the drain runs", func() bool {
		return strings.Contains(gpuaas(t, "task", "list", "--node", "gpu-20"), "workload.drain")
	})
	killAgent(t, "gpu-20")
	exec(t, "UPDATE node_tasks SET lease_until = now() - interval '1 minute' WHERE type = 'workload.drain' AND lease_until IS NOT NULL")
	c := dial(t)
	require.NoError(t, c.ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleReclaim).Trigger(t.Context(), client.ScheduleTriggerOptions{}))
	p, stuck := parked(t, "gpu-20", lifecycle.ReasonTaskLost)
	p.requireStory(stuck)
}

// TestTerminated: after Terminate on the page, the static details name the command that
// restores the node, and the printed lists show the operation.
func TestTerminated(t *testing.T) {
	node(t, "gpu-21", "cpu-dev")
	workload(t, "gpu-21")
	gpuaas(t, "node", "drain", "gpu-21", "--yes", "--no-wait")
	c := dial(t)
	id := lifecycle.NodeWorkflowID("gpu-21", show(t, "gpu-21").ID)
	require.NoError(t, c.TerminateWorkflow(t.Context(), id, "", "by mistake"))
	p, _ := parked(t, "gpu-21", "run_terminated")
	p.navigate(p.run + "/user-metadata")
	p.sees("gpuaas node rehydrate gpu-21")
	p.picture("run_terminated")
	gpuaas(t, "node", "rehydrate", "gpu-21")
	require.Equal(t, lifecycle.NodeActive, show(t, "gpu-21").State)
}
