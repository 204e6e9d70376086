package cli

import (
	"archive/zip"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// enrolled is gpu-17 with an identity and an agent that polls.
func enrolled() wire.NodeView {
	n := node()
	n.Identity = &trust.CertFacts{URI: "spiffe://dev/node/" + nodeID + "/1", Issuer: "CN=node-ca-1", NotAfter: start().Add(48 * time.Hour), Fingerprint: "0a0b"}
	n.TrustedCAs = []trust.CertFacts{{Subject: "CN=node-ca-1"}}
	n.LastHeartbeatAt, n.AgentVersion, n.Driver, n.SetVersion, n.NewestSetVersion = at(-10*time.Second), "1.2.0", "systemd", 3, 3
	return n
}

// refusalsRead returns the limit of the last request for a node's rejections.
func refusalsRead(t *testing.T, h *harness) (limit string) {
	t.Helper()
	for _, r := range h.api.requests {
		u, err := url.Parse(strings.Fields(r)[1])
		require.NoError(t, err)
		if q := u.Query(); slices.Contains(q["action"], audit.TokenRefused) {
			limit = q.Get("limit")
		}
	}
	return limit
}

// TestDoctor: each fault is named by one check, with who can correct it and the next step.
func TestDoctor(t *testing.T) {
	t.Parallel()
	t.Run("a good node", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes = []wire.NodeView{enrolled()}
		h.api.audit = map[string][]audit.Event{nodeID: {{Seq: 1, At: start().Add(-time.Minute), Action: audit.IdentityRefused,
			Result: audit.Refused, Reason: schema.ReasonNodeLocked}}} // ended before the last heartbeat
		h.golden("doctor", "doctor", "gpu-17")
		require.Equal(t, "1", refusalsRead(t, h), "the check needs the last rejection")
	})
	t.Run("a parked node", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		n := enrolled()
		n.State, n.LastHeartbeatAt = lifecycle.NodeDraining, at(-time.Hour)
		n.Operation = &wire.OperationSummary{Action: lifecycle.ActionDrain, Phase: "drain", Stuck: &lifecycle.Stuck{
			Phase: "drain", WaitingOn: lifecycle.AttentionAgent, Reason: "agent_silent", Message: "the agent \x1b[2J does\nnot respond",
			Since: start().Add(-50 * time.Minute), Next: "gpuaas op retry NODE --reason TEXT"}}
		h.api.nodes = []wire.NodeView{n}
		h.temporal.faults = []wire.ControlPlaneFault{{Component: "worker", Reason: "no_worker", Message: "no worker polls", Next: "start gpuaas-worker"}}
		h.golden("doctor-parked", "doctor", "gpu-17")
	})
	t.Run("faults that do not concern the node", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes = []wire.NodeView{enrolled()}
		h.temporal.faults = []wire.ControlPlaneFault{{Component: "surplus-machine", Reason: "orphan", Message: "provider maas has 1 machine\x1b[2J", Next: "delete it"},
			{Component: "tasks", Reason: "unavailable", Message: "the activity Drain fails in 1 operation", Next: "gpuaas op show gpu-18"},
			{Component: "verifier-set", Reason: "lost", Message: "a set is lost on gpu-18"}, {Component: "health-recovery", Reason: "breaker_open", Message: "no repair starts"}}
		require.Zero(t, h.golden("doctor-info", "doctor", "gpu-17"))

		n := enrolled()
		n.Operation = &wire.OperationSummary{Action: lifecycle.ActionDrain, Status: lifecycle.OperationRunning}
		n.Conditions = []signal.Condition{{Condition: health.Condition{Checker: "gpu_xid", Status: health.Unhealthy, Repair: health.RepairReboot}}}
		n.SetLost = true
		for _, f := range h.temporal.faults {
			require.Equal(t, f.Component != "surplus-machine", concerns(n, f), f.Component)
		}
	})
	for name, c := range map[string]struct {
		set   func(h *harness, n *wire.NodeView)
		check string
		owner diagnosis.Owner
		next  string // a part of it
	}{
		"removed":     {func(_ *harness, n *wire.NodeView) { n.State = lifecycle.NodeRemoved }, "registration", diagnosis.Operator, "gpuaas node register"},
		"quarantined": {func(_ *harness, n *wire.NodeView) { n.State, n.Cordoned = lifecycle.NodeQuarantined, true }, "registration", diagnosis.Operator, "gpuaas node release gpu-17"},
		"locked": {func(_ *harness, n *wire.NodeView) { n.IdentityLock = &trust.IdentityLock{Reason: "sessions_alternate"} },
			"identity", diagnosis.Operator, "gpu-17"},
		"locked, with its rejections": {func(h *harness, n *wire.NodeView) {
			n.IdentityLock, n.LastHeartbeatAt = &trust.IdentityLock{Reason: trust.LockedByOperator}, at(-time.Hour)
			h.api.audit[nodeID] = []audit.Event{{Seq: 1, At: start(), Action: audit.IdentityRefused, Result: audit.Refused, Reason: schema.ReasonNodeLocked}}
		}, "identity", diagnosis.Operator, "gpuaas node unlock gpu-17"},
		"silent since it was unlocked": {func(h *harness, n *wire.NodeView) {
			n.LastHeartbeatAt = at(-time.Hour)
			h.api.audit[nodeID] = []audit.Event{{Seq: 1, At: start(), Action: audit.IdentityRefused, Result: audit.Refused, Reason: schema.ReasonNodeLocked}}
		}, "last heartbeat", diagnosis.Node, "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"},
		"locked, also as a fault of the control plane": {func(h *harness, n *wire.NodeView) {
			n.IdentityLock = &trust.IdentityLock{Reason: trust.LockedByOperator}
			h.temporal.faults = []wire.ControlPlaneFault{{Component: "node-identity", Message: "node gpu-17, for 1h: its identity is locked"},
				{Component: "node-identity", Message: "node gpu-18, for 2h: its identity is locked"}}
		}, "identity", diagnosis.Operator, "gpuaas node unlock gpu-17"},
		"unlocked, and silent for longer than the agent waits": {func(h *harness, n *wire.NodeView) {
			n.LastHeartbeatAt = at(-time.Hour)
			h.api.audit[nodeID] = []audit.Event{{Seq: 1, At: start().Add(-20 * time.Minute), Action: audit.NodeUnlock, Result: audit.Succeeded}}
		}, "last heartbeat", diagnosis.Node, "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"},
		"alarm": {func(_ *harness, n *wire.NodeView) { n.IdentityAlarm = &trust.IdentityAlarm{Reason: trust.AlarmToken} },
			"identity", diagnosis.Operator, "gpu-17"},
		"expired": {func(_ *harness, n *wire.NodeView) { n.Identity.NotAfter = start() }, "identity", diagnosis.Node, "systemctl restart gpuaas-node-agent"},
		"another issuer": {func(_ *harness, n *wire.NodeView) { n.TrustedCAs = []trust.CertFacts{{Subject: "CN=node-ca-2"}} },
			"identity", diagnosis.ControlPlane, "gpuaas trust show"},
		"not enrolled": {func(_ *harness, n *wire.NodeView) {
			n.State, n.Identity, n.LastHeartbeatAt = lifecycle.NodeRegistered, nil, nil
		}, "identity", diagnosis.Operator, "gpuaas node enroll gpu-17"},
		"never polled": {func(_ *harness, n *wire.NodeView) { n.LastHeartbeatAt = nil }, "last heartbeat", diagnosis.Node, "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"},
		"silent": {func(_ *harness, n *wire.NodeView) { n.LastHeartbeatAt = at(-lifecycle.SilentAfter - time.Second) },
			"last heartbeat", diagnosis.Node, "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"},
		"full disk": {func(_ *harness, n *wire.NodeView) { n.AgentFault = "disk_full: no space" }, "agent", diagnosis.Node, "on the node: /opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"},
		"a broken GPU": {func(_ *harness, n *wire.NodeView) {
			n.Conditions = []signal.Condition{{Condition: health.Condition{Checker: "gpu_fan", Status: health.Unhealthy, Repair: health.RepairObserve}},
				{Condition: health.Condition{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unhealthy, Reason: "BusFault", Code: 79, Repair: health.RepairReboot}}}
		}, "health", diagnosis.Node, "gpuaas node recover gpu-17 --dry-run"},
		"a broken GPU in a running repair": {func(_ *harness, n *wire.NodeView) {
			n.Operation = &wire.OperationSummary{Action: lifecycle.ActionRecover, Status: lifecycle.OperationRunning, Phase: "drain"}
			n.Conditions = []signal.Condition{{Condition: health.Condition{Checker: "gpu_xid", Status: health.Unhealthy, Reason: "BusFault", Repair: health.RepairReboot}}}
		}, "health", diagnosis.Node, "gpuaas op show gpu-17"},
		"quarantined by an operation": {func(_ *harness, n *wire.NodeView) {
			n.State, n.Operation = lifecycle.NodeQuarantined, &wire.OperationSummary{Action: lifecycle.ActionRecover, Status: lifecycle.OperationRunning, Phase: "drain"}
		}, "registration", diagnosis.Operator, "gpuaas op show gpu-17"},
		"no driver": {func(_ *harness, n *wire.NodeView) { n.Driver = "" }, "workload driver", diagnosis.Operator, "GPUAAS_WORKLOAD_DRIVER"},
		"driver fault": {func(_ *harness, n *wire.NodeView) { n.DriverFault = "dockerd does not respond" },
			"workload driver", diagnosis.Node, "correct the driver"},
		"rejections": {func(h *harness, _ *wire.NodeView) {
			h.api.audit[nodeID] = []audit.Event{{Seq: 1, At: start(), Action: audit.IdentityRefused, Result: audit.Refused, Reason: schema.ReasonExpired}}
		}, "rejections", diagnosis.Node, "gpuaas audit --node gpu-17"},
		"control plane": {func(h *harness, _ *wire.NodeView) {
			h.temporal.faults = []wire.ControlPlaneFault{{Component: "clock", Message: "the clock differs"}}
		}, "control plane: clock", diagnosis.ControlPlane, "gpuaas stuck"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			n := enrolled()
			h.api.audit = map[string][]audit.Event{}
			c.set(h, &n)
			h.api.nodes = []wire.NodeView{n}
			require.Equal(t, schema.ExitFailed, h.run("doctor", "gpu-17", "-o", "json"), h.err.String())
			var r diagnosis.Report
			require.NoError(t, json.Unmarshal(h.out.Bytes(), &r))
			faults := r.Faults()
			require.Len(t, faults, 1, h.out.String())
			require.Equal(t, c.check, faults[0].Name)
			require.Equal(t, c.owner, faults[0].Owner)
			require.Contains(t, faults[0].Next, c.next)
		})
	}
	t.Run("a node that was just unlocked", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		n := enrolled()
		n.LastHeartbeatAt = at(-time.Hour)
		h.api.nodes = []wire.NodeView{n}
		h.api.audit = map[string][]audit.Event{nodeID: {
			{Seq: 1, At: start().Add(-10 * time.Minute), Action: audit.IdentityRefused, Result: audit.Refused, Reason: schema.ReasonNodeLocked},
			{Seq: 2, At: start().Add(-5 * time.Minute), Action: audit.NodeUnlock, Result: audit.Succeeded}}}
		require.Equal(t, schema.ExitDone, h.run("doctor", "gpu-17"), h.out.String())
		require.Contains(t, h.out.String(), "its agent polls again by 2026-03-01T12:10:00Z")
		require.Contains(t, h.out.String(), ", at its last heartbeat", "the agent may be gone since")
	})
	t.Run("an unknown node", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, schema.ExitNotFound, setup(t).run("doctor", "gpu-99"))
	})
}

// unzip returns the files of an archive by name.
func unzip(t *testing.T, path string) map[string]string {
	t.Helper()
	archive, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer archive.Close()
	files := map[string]string{}
	for _, f := range archive.File {
		in, err := f.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		files[f.Name] = string(content)
	}
	return files
}

// TestDoctorEvidence: the bundle has what the API has about the node, also if a part of it
// cannot be read.
func TestDoctorEvidence(t *testing.T) {
	t.Parallel()
	h := setup(t)
	n := enrolled()
	n.Labels = map[string]string{"token": "hvs.CAESIJlU9Qj0eXampleExampleExampleExample"}
	h.api.nodes = []wire.NodeView{n}
	for i := range int64(3) {
		h.api.audit[nodeID] = append(h.api.audit[nodeID], audit.Event{Seq: i + 1, At: start().Add(-time.Minute),
			Action: audit.IdentityRefused, Result: audit.Refused, Reason: schema.ReasonExpired})
	}
	h.api.evidence = &evidence.Bundle{Host: "gpu-17", OperationID: "op-of-the-repair"}
	file := filepath.Join(t.TempDir(), "gpu-17.zip")
	require.Equal(t, schema.ExitDone, h.run("doctor", "gpu-17", "--bundle", file), h.err.String())
	require.Equal(t, "200", refusalsRead(t, h))
	require.Contains(t, h.err.String(), file)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	files := unzip(t, file)
	for name, content := range files {
		require.True(t, name == "commands.txt" || json.Valid([]byte(content)), name)
	}
	for _, name := range []string{"doctor.json", "node.json", "control-plane.json", "refusals.json", "history.json", "tasks.json", "audit.json", "signals.json", "decisions.json", "trust.json", "rotation.json", "commands.txt"} {
		require.Contains(t, files, name)
	}
	require.Contains(t, files["rma.json"], "op-of-the-repair")
	require.Contains(t, files["node.json"], nodeID)
	require.Contains(t, files["node.json"], `"token": "REDACTED"`)
	require.Contains(t, files["commands.txt"], "gpuaas admin check")
	var refusals []audit.Row
	require.NoError(t, json.Unmarshal([]byte(files["refusals.json"]), &refusals))
	require.Len(t, refusals, 3)
	require.Contains(t, files["trust.json"], "error", "the API of this test has no trust endpoint")

	before, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, schema.ExitRefused, h.run("doctor", "gpu-17", "--bundle", file), "a file that exists stays")
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after)
	h.api.evidence = nil
	cured := filepath.Join(t.TempDir(), "cured.zip")
	require.Equal(t, schema.ExitDone, h.run("doctor", "gpu-17", "--bundle", cured), h.err.String())
	require.NotContains(t, unzip(t, cured), "rma.json")
	missing := filepath.Join(t.TempDir(), "no", "dir.zip")
	require.Equal(t, schema.ExitRefused, h.run("doctor", "gpu-17", "--bundle", missing))
	require.Contains(t, h.err.String(), "creating "+missing+": no such file or directory")
}

// TestDoctorChecks are the checks of the verifier set, of the open tasks, and of what needs
// attention without a parked operation.
func TestDoctorChecks(t *testing.T) {
	t.Parallel()
	n := enrolled()
	now := start()
	require.Equal(t, diagnosis.OK, checkVerifierSet(n).Result)
	n.NewestSetVersion = 4
	require.Equal(t, diagnosis.Node, checkVerifierSet(n).Owner)
	n.SetLost = true
	require.Equal(t, diagnosis.ControlPlane, checkVerifierSet(n).Owner)
	heartbeat := n.LastHeartbeatAt
	n.LastHeartbeatAt = nil
	require.Equal(t, diagnosis.Skipped, checkVerifierSet(n).Result)
	require.Equal(t, diagnosis.Skipped, checkHealth(n).Result)

	n.LastHeartbeatAt = heartbeat
	fault := health.Condition{Checker: "gpu_xid", Component: "GPU-0", Status: health.Unhealthy, Reason: "Xid", Code: 79,
		Repair: health.RepairReboot, Detail: "fallen off\x1b[2J\nok", Since: now.Add(-time.Hour)}
	ofWork, second := fault, fault
	ofWork.Repair, second.Component = health.RepairNone, "GPU-1"
	n.Conditions = []signal.Condition{{Condition: ofWork}}
	require.Equal(t, "1 condition to observe: gpuaas node show "+n.Host, checkHealth(n).Answer)
	n.Conditions = []signal.Condition{{Condition: fault, Stale: true}}
	require.Equal(t, diagnosis.OK, checkHealth(n).Result)
	n.Conditions = []signal.Condition{{Condition: fault}, {Condition: second}, {Condition: ofWork}}
	require.Equal(t, "gpu_xid GPU-0 Xid 79, needs reboot, and 1 more", checkHealth(n).Answer)

	pending := wire.TaskView{TaskID: taskID, Type: task.FactsCollect, Status: task.Pending, CreatedAt: now.Add(-time.Minute)}
	require.Equal(t, diagnosis.OK, checkTasks([]wire.TaskView{pending}, now).Result)
	pending.CreatedAt = now.Add(-3 * time.Minute)
	require.Contains(t, checkTasks([]wire.TaskView{pending}, now).Answer, "was not dispatched for 3m")
	pending.Status = task.Lost
	require.Equal(t, "inspect the node, then: gpuaas task resume "+taskID+" --reason TEXT", checkTasks([]wire.TaskView{pending}, now).Next)

	row, _ := stuck.Find(stuck.RowDraining, stuck.ScopeNode)
	list := wire.StuckList{Nodes: []stuck.Node{{Row: row.Name, NodeID: "other"}}}
	require.Equal(t, diagnosis.OK, checkState(n, list).Result)
	list.Nodes[0] = stuck.Node{Row: row.Name, NodeID: n.ID, Stuck: row.Stuck("gpu-17", "it drains for 1h", "", now)}
	require.Equal(t, "gpuaas op show gpu-17", checkState(n, list).Next)
}

// The probable cause names a next step, unless it is this command.
func TestCauseOfDoctor(t *testing.T) {
	t.Parallel()
	locked := cause.Candidate{Summary: "the identity of the node is locked", Confidence: 0.98, Owner: diagnosis.Operator, Next: "gpuaas doctor gpu-17"}
	require.Equal(t, "the identity of the node is locked (confidence 0.98); owner: operator", causeAnswer(locked))
	locked.Next = "gpuaas op show gpu-17"
	require.Equal(t, "the identity of the node is locked (confidence 0.98); owner: operator; next: gpuaas op show gpu-17", causeAnswer(locked))
}

// TestNodeReport adds the checks of the node's own doctor, whose text is untrusted.
func TestNodeReport(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.nodes = []wire.NodeView{enrolled()}
	file := filepath.Join(t.TempDir(), "node.json")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(`{"checks":[{"name":"route","asked":"GET","answer":"404\u001b[2J, not from the node API","result":"failed","owner":"ingress","next":"check GPUAAS_API_URL"},{"name":"disk","result":"fine"}]}`)
	require.Equal(t, schema.ExitFailed, h.run("doctor", "gpu-17", "--node-report", file))
	require.Regexp(t, `failed +node: route +404\?\[2J, not from the node API`, h.out.String())
	require.Regexp(t, `failed +node: disk`, h.out.String(), "an unknown result is a fault")
	require.Contains(t, h.out.String(), "probable cause")
	for _, bad := range []string{"", "{}", "[]", `{"checks":[` + strings.Repeat(`{},`, 60) + `{}]}`, strings.Repeat(" ", maxNodeReport+1)} {
		write(bad)
		require.Equal(t, schema.ExitUsage, h.run("doctor", "gpu-17", "--node-report", file))
	}
	require.Equal(t, schema.ExitUsage, h.run("doctor", "gpu-17", "--node-report", file+".none"))
}

func TestAdminCheck(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.NotZero(t, h.run("admin", "check"), "this program is not linked with it")
	h.env.platform.Check = func(context.Context, temporal.Config) (r diagnosis.Report, err error) {
		r.Add(diagnosis.Check{Name: "database", Asked: "a connection"}.OK("connected"))
		r.Add(diagnosis.Check{Name: "vault"}.Failed("Vault is sealed", diagnosis.ControlPlane, "vault operator unseal"))
		return r, nil
	}
	h.golden("admin-check", "admin", "check")
	h.api.server.Close()
	require.Equal(t, schema.ExitFailed, h.run("admin", "check"))
	require.Regexp(t, `failed +admin API +the admin API at .* does not respond`, h.out.String())
	delete(h.vars, "GPUAAS_API_URL")
	require.Equal(t, schema.ExitFailed, h.run("admin", "check"))
	require.Regexp(t, `skipped +admin API`, h.out.String())
	require.Contains(t, h.err.String(), "1 check skipped, because of an earlier fault or because the environment does not name the part")
}
