package webui

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

// TestStuckTable injects the fault of each row of the stuck table. The row is the same wherever an operator
// reads it, and its first command, typed as it is printed, ends it well or says what does.
func TestStuckTable(t *testing.T) {
	stacktest.Need(t)
	exec(t, "UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	t.Run("provisioning", func(t *testing.T) {
		operationRow(t, "row-01", stuck.RowProvisioning, parkHungProvision, provider.respond, endHungProvision)
	})
	t.Run("terminating", func(t *testing.T) {
		operationRow(t, "row-02", stuck.RowTerminating, parkHungTermination, provider.respond, endHungTermination)
	})
	t.Run("nodes", func(t *testing.T) {
		for name, row := range map[string]func(*testing.T){"bootstrapping": bootstrappingRow, "silent": silentRow, "certificate": certificateRow, "draining": drainingRow, "terminating": unownedRow} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				row(t)
			})
		}
	})
	t.Run("pending", pendingRow) // the last one, because no worker runs meanwhile
}

// operationRow parks an operation as the row says, corrects the cause, and types the first command.
func operationRow(t *testing.T, host, name string, park func(*testing.T, string), correct func(), end func(*testing.T, wire.StuckOperation)) {
	t.Helper()
	row, ok := stuck.Find(name, stuck.ScopeOperation)
	require.True(t, ok)
	park(t, host)
	op := parked(t, host, row.Reason)
	require.Equal(t, []any{row.Action, row.Phase, row.WaitingOn}, []any{op.Action, op.Stuck.Phase, op.Stuck.WaitingOn})
	var decisions []lifecycle.Decision
	for _, o := range row.Options {
		decisions = append(decisions, o.Decision)
	}
	require.Equal(t, decisions, readingOf(*op.Stuck).Decisions)
	requireEverywhere(t, op)
	p := open(t, op.WebURL)
	p.requireTimer(*op.Stuck)
	p.metadata(op.WebURL, op.Action, op.Host)
	p.requireDetails(*op.Stuck)
	correct()
	typed(t, op.Stuck.Next)
	end(t, op)
}

// typed runs a printed command in a shell, with a reason in place of the placeholder.
func typed(t *testing.T, line string) string {
	t.Helper()
	out, err := inShell(t, line)
	require.NoError(t, err, "%s\n%s", line, out)
	return out
}

// inShell runs a line in a shell whose machine is the stack: gpuaas is its CLI, and systemctl
// starts its worker.
func inShell(t *testing.T, line string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Symlink(stack.Bin, filepath.Join(dir, "gpuaas")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte(`#!/bin/sh
[ "$*" = "start gpuaas-worker" ] && exec gpuaas dev up --detach --dir '`+stack.Dir+"'\n"), 0o700))
	c := osexec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(line, lifecycle.ReasonPlaceholder, "corrected"))
	c.Env = append(append(append(os.Environ(), stack.Env...), settings...), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	return string(out), err
}

// suspend stops the node's agent without ending it, as a machine that hangs, until resume is called or
// the test ends.
func suspend(t *testing.T, host string) (resume func()) {
	t.Helper()
	parts, err := stack.Parts(t.Context())
	require.NoError(t, err)
	pid := parts["agent/"+host].PID
	require.Greater(t, pid, 1)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	return once(t, func() { require.NoError(t, syscall.Kill(pid, syscall.SIGCONT)) })
}

// bootstrappingRow provisions a node whose agent hangs.
func bootstrappingRow(t *testing.T) {
	t.Helper()
	var resume func()
	park := func(t *testing.T, host string) {
		t.Helper()
		stack.Enroll(t, host, "cpu-dev")
		resume = suspend(t, host)
		silence(t, host)
		stack.Run(t, "node", "provision", host, "--no-wait")
		endRetries(t, host, "CheckAgent")
	}
	operationRow(t, "row-03", stuck.RowBootstrapping, park, func() { resume() }, func(t *testing.T, op wire.StuckOperation) { t.Helper(); ended(t, op.Host) })
}

// inPhase reports whether the node's operation is in a phase.
func inPhase(t *testing.T, host, phase string) bool {
	t.Helper()
	var v wire.OperationView
	return stack.Read(t, &v, "op", "show", host) && slices.ContainsFunc(v.Operation.Phases, func(p lifecycle.Phase) bool {
		return p.Name == phase && p.State == lifecycle.PhaseRunning
	})
}

// nodeRow waits until gpuaas stuck lists the node with the row, and requires that the admin API, the
// table, and gpuaas doctor say the same.
func nodeRow(t *testing.T, host, name string) stuck.Node {
	t.Helper()
	row, ok := stuck.Find(name, stuck.ScopeNode)
	require.True(t, ok)
	found := listed(t, host, name)
	require.Equal(t, []any{row.Reason, row.WaitingOn}, []any{found.Stuck.Reason, found.Stuck.WaitingOn})
	require.Contains(t, row.States, found.State)
	require.Equal(t, stack.Node(t, host).State, found.State)
	want := readingOf(row.Stuck(host, "", "", found.Stuck.Since))
	require.Equal(t, want, readingOf(found.Stuck))

	var list wire.StuckList
	get(t, "/stuck?node="+found.NodeID, &list)
	require.Len(t, list.Nodes, 1)
	require.Equal(t, want, readingOf(list.Nodes[0].Stuck))
	require.Equal(t, found.State, list.Nodes[0].State)
	line := oneLine(stack.Run(t, "stuck"))
	require.Contains(t, line, host)
	require.Contains(t, line, oneLine(found.Stuck.Next))
	if name != stuck.RowSilent { // it has a check of its own
		check := checked(t, host, "state")
		require.Equal(t, diagnosis.Failed, check.Result)
		require.Contains(t, check.Answer, row.Reason)
		require.Equal(t, found.Stuck.Next, check.Next)
	}
	return found
}

// listed waits until gpuaas stuck lists the node with a row.
func listed(t *testing.T, host, name string) (found stuck.Node) {
	t.Helper()
	stack.Eventually(t, host+" is listed as "+name, func() bool {
		var list wire.StuckList
		if !stack.Read(t, &list, "stuck", "--limit", "0") {
			return false
		}
		i := slices.IndexFunc(list.Nodes, func(n stuck.Node) bool { return n.Host == host && n.Row == name })
		if i < 0 {
			return false
		}
		found = list.Nodes[i]
		return true
	})
	return found
}

// unlisted waits until gpuaas stuck does not list the node.
func unlisted(t *testing.T, host string) {
	t.Helper()
	stack.Eventually(t, host+" is not listed", func() bool {
		var list wire.StuckList
		return stack.Read(t, &list, "stuck", "--limit", "0") && !slices.ContainsFunc(list.Nodes, func(n stuck.Node) bool { return n.Host == host })
	})
}

// checked returns a check of gpuaas doctor, whose exit code is 1 if any of its checks finds a fault.
func checked(t *testing.T, host, name string) diagnosis.Check {
	t.Helper()
	var r diagnosis.Report
	out, _ := stack.Command(t.Context(), "doctor", host, "-o", "json").Output() // the report says what failed
	decodeJSON(t, out, &r)
	i := slices.IndexFunc(r.Checks, func(c diagnosis.Check) bool { return c.Name == name })
	require.GreaterOrEqual(t, i, 0, "%s", out)
	return r.Checks[i]
}

func silentRow(t *testing.T) {
	t.Helper()
	const host = "row-04"
	stack.Enroll(t, host, "cpu-dev")
	resume := suspend(t, host)
	silence(t, host)
	stack.Eventually(t, host+" is offline", func() bool { return stack.Node(t, host).State == lifecycle.NodeOffline })
	found := nodeRow(t, host, stuck.RowSilent)
	out, err := inShell(t, found.Stuck.Next)
	require.Error(t, err, "it found the fault")
	require.Contains(t, out, "gpuaas-node-agent doctor")
	heartbeat := checked(t, host, "last heartbeat")
	require.Equal(t, []any{diagnosis.Failed, diagnosis.Node}, []any{heartbeat.Result, heartbeat.Owner})
	resume() // what the administrator of the node does
	unlisted(t, host)
	require.Equal(t, diagnosis.OK, checked(t, host, "last heartbeat").Result)
}

func certificateRow(t *testing.T) {
	t.Helper()
	const host = "row-05"
	stack.Enroll(t, host, "cpu-dev")
	id := stack.Node(t, host).ID
	exec(t, "UPDATE node_certificates SET not_before = not_before - 9 * (not_after - now()) WHERE node_id = $1 AND slot = 'current'", id)
	found := nodeRow(t, host, stuck.RowCertificate)
	out, err := inShell(t, found.Stuck.Next)
	require.Error(t, err, "it found the fault")
	require.Contains(t, out, stuck.ReasonCertificateOverdue)
	exec(t, "UPDATE node_certificates SET not_before = now() WHERE node_id = $1 AND slot = 'current'", id) // as after a renewal
	unlisted(t, host)
}

func drainingRow(t *testing.T) {
	t.Helper()
	const host = "row-06"
	stack.Enroll(t, host, "cpu-dev")
	stack.Occupy(t, host)
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait", "--deadline", "2h", "--reason", "RMA-4411")
	stack.Eventually(t, "the workload drains", func() bool { return inPhase(t, host, lifecycle.PhaseDrain) })
	exec(t, "UPDATE nodes SET state_since = now() - interval '31 minutes' WHERE node_id = $1", stack.Node(t, host).ID)
	found := nodeRow(t, host, stuck.RowDraining)
	op := operationOf(t, host)
	require.Equal(t, []any{op.OperationID, lifecycle.OperationRunning}, []any{found.OperationID, op.Status})
	require.Contains(t, found.Stuck.Message, "job-1")
	require.Equal(t, lifecycle.PhaseDrain, attributesOf(t, op.WorkflowID, op.RunID)[lifecycle.AttrPhase])
	p := open(t, webURL(op.WorkflowID, op.RunID))
	p.sees("node:" + host + ":")
	require.Contains(t, typed(t, found.Stuck.Next), "Deadline:")
	stack.EndWorkload(t, host) // its owner ends it
	ended(t, host)
	unlisted(t, host)
}

// unownedRow changes the record of a node, as a restore of the database does: the node is terminating, and no
// operation holds it.
func unownedRow(t *testing.T) {
	t.Helper()
	const host = "row-07"
	stack.Enroll(t, host, "cpu-dev")
	stack.Run(t, "node", "drain", host, "--yes", "--wait", "--reason", "RMA-4411")
	exec(t, "UPDATE nodes SET state = $2, state_since = now() - interval '6 minutes' WHERE node_id = $1", stack.Node(t, host).ID, lifecycle.NodeTerminating)
	found := nodeRow(t, host, stuck.RowTerminating)
	require.Empty(t, found.OperationID)
	last := operationOf(t, host)
	require.Equal(t, string(lifecycle.AttentionNone), attributesOf(t, last.WorkflowID, last.RunID)[lifecycle.AttrAttention])
	open(t, webURL(last.WorkflowID, last.RunID)).sees("COMPLETED")
	require.Contains(t, typed(t, found.Stuck.Next), "it is active again")
	unlisted(t, host)
	require.Equal(t, lifecycle.NodeActive, stack.Node(t, host).State)
}

func pendingRow(t *testing.T) {
	const host = "row-08"
	stack.Enroll(t, host, "cpu-dev")
	parts, err := stack.Parts(t.Context())
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(parts["worker"].PID, syscall.SIGTERM))
	stack.Eventually(t, "the worker ended", func() bool {
		parts, err := stack.Parts(t.Context())
		return err == nil && !parts["worker"].Healthy
	})
	out, err := stack.Command(t.Context(), "node", "drain", host, "--yes", "--no-wait", "--reason", "RMA-4411").CombinedOutput()
	require.Error(t, err, "no worker claims it: %s", out)
	found := listed(t, host, stuck.RowPending)
	row, _ := stuck.Find(stuck.RowPending, stuck.ScopeRequest)
	require.Equal(t, []any{row.Reason, row.WaitingOn, row.Options[0].Command}, []any{found.Stuck.Reason, found.Stuck.WaitingOn, found.Stuck.Next})
	var list wire.StuckList
	get(t, "/stuck?node="+found.NodeID, &list)
	require.Len(t, list.Nodes, 1)
	require.Equal(t, readingOf(found.Stuck), readingOf(list.Nodes[0].Stuck))
	require.True(t, slices.ContainsFunc(list.Faults, func(f wire.ControlPlaneFault) bool { return f.Component == "worker" }))
	id := lifecycle.NodeWorkflowID(host, found.NodeID)
	require.Equal(t, string(lifecycle.AttentionNone), attributesOf(t, id, "")[lifecycle.AttrAttention], "nothing has parked it")
	require.Equal(t, found.OperationID, attributesOf(t, id, "")[lifecycle.AttrOperationID])
	p := open(t, found.WebURL)
	p.sees("node:" + host + ":")
	p.sees("RUNNING")
	typed(t, found.Stuck.Next)
	ended(t, host)
	unlisted(t, host)
	require.Equal(t, lifecycle.NodeDrained, stack.Node(t, host).State)
}
