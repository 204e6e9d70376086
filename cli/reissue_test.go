package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reissueAt is a reissue of gpu-17 in its i-th phase.
func reissueAt(i int, s lifecycle.OperationState) lifecycle.OperationStatus {
	op := operation(lifecycle.ActionReissueEnrollment, s)
	op.WorkflowID = lifecycle.ReissueWorkflowID("gpu-17", nodeID)
	for k, p := range lifecycle.PhasesOf(lifecycle.ActionReissueEnrollment, lifecycle.Options{}) {
		phase := lifecycle.Phase{Name: p.Name, Title: p.Title, State: lifecycle.PhasePending, Attempt: 1}
		switch {
		case k < i:
			phase.State, phase.StartedAt, phase.EndedAt = lifecycle.PhaseCompleted, at(0), at(time.Second)
		case k == i:
			phase.State, phase.StartedAt = lifecycle.PhaseRunning, at(time.Second)
		}
		op.Phases = append(op.Phases, phase)
	}
	if s.Ended() {
		op.EndedAt, op.Outcome = at(time.Minute), "reissued; its agent polls with the new identity"
	}
	return lifecycle.OperationStatus{Operation: op, Node: lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17", State: lifecycle.NodeActive}}
}

func parkedReissue() lifecycle.OperationStatus {
	st := reissueAt(1, lifecycle.OperationParked)
	st.Operation.Phases[1].State = lifecycle.PhaseParked
	st.Operation.Stuck = &lifecycle.Stuck{Phase: lifecycle.PhaseClaim, WaitingOn: lifecycle.AttentionAgent, Reason: "agent_silent",
		Message: "the node's agent did not answer within 24h0m0s", Since: start().Add(-time.Hour),
		Cause: "the restart command was not run on the node", Next: "gpuaas op cancel NODE --reissue --reason TEXT"}
	return st
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

func TestReissue(t *testing.T) {
	t.Parallel()
	t.Run("prints the one command and nothing else", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("reissue", "node", "reissue-enrollment", "gpu-17", "--reason", "lost its files", "--idempotency-key", "k1")
		require.Equal(t, h.api.recovery.RestartCommand+"\n", h.out.String())
		require.Equal(t, map[string]wire.LifecycleRequest{"gpu-17": {Reason: "lost its files"}}, h.api.reissued)
	})
	t.Run("waits for the first poll", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		done := reissueAt(3, lifecycle.OperationCompleted)
		h.temporal.reissueOf = inTurn(reissueAt(1, lifecycle.OperationRunning), reissueAt(2, lifecycle.OperationRunning), done)
		h.temporal.result = &done
		h.golden("reissue-wait", "node", "reissue-enrollment", "gpu-17", "--wait")
	})
	t.Run("parks", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := parkedReissue()
		h.temporal.reissue = &st
		h.golden("reissue-parked", "node", "reissue-enrollment", "gpu-17", "--wait")
	})
	t.Run("times out and prints the next command", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := reissueAt(1, lifecycle.OperationRunning)
		h.temporal.reissue = &st
		h.golden("reissue-timeout", "node", "reissue-enrollment", "gpu-17", "--wait", "--timeout", "1m")
	})
	t.Run("into a file", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		path := filepath.Join(h.env.dir, "r.json")
		require.Zero(t, h.run("node", "reissue-enrollment", "gpu-17", "--bundle", path, "-o", "json"))
		require.NotContains(t, h.out.String(), enrollToken)
		require.Equal(t, os.FileMode(0o600), mode(t, path))
		require.Equal(t, h.api.recovery.RestartCommand, readRecovery(t, path).RestartCommand)
	})
	t.Run("json holds everything", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("node", "reissue-enrollment", "gpu-17", "-o", "json"))
		var answer wire.LifecycleResponse
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &answer))
		require.Equal(t, h.api.recovery, answer.RecoveryBundle)
	})
	t.Run("plan, beside a running operation", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes[0].Operation = &wire.OperationSummary{Action: lifecycle.ActionProvision, Status: lifecycle.OperationRunning}
		h.golden("reissue-plan", "node", "reissue-enrollment", "gpu-17", "--dry-run")
		require.Empty(t, h.api.reissued)
	})
	t.Run("refused while draining", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		_, err := lifecycle.CheckStart(lifecycle.ActionReissueEnrollment, lifecycle.NodeDraining)
		h.api.refuseReissue["gpu-17"] = schema.AsError(err)
		h.golden("reissue-refused", "node", "reissue-enrollment", "gpu-17")
	})
	t.Run("no bundle", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.recovery = nil
		require.Equal(t, schema.ExitFailed, h.run("node", "reissue-enrollment", "gpu-17"))
		require.Contains(t, h.err.String(), "gpuaas op cancel gpu-17 --reissue")
	})
	t.Run("nothing is issued when the file cannot be made", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Equal(t, schema.ExitRefused, h.run("node", "reissue-enrollment", "gpu-17", "--bundle", filepath.Join(h.env.dir, "none", "r.json")))
		require.Empty(t, h.api.reissued)
	})
}

func inTurn(all ...lifecycle.OperationStatus) func(string) lifecycle.OperationStatus {
	n := -1
	return func(string) lifecycle.OperationStatus {
		n = min(n+1, len(all)-1)
		return all[n]
	}
}

func readRecovery(t *testing.T, path string) wire.RecoveryBundle {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var b wire.RecoveryBundle
	require.NoError(t, json.Unmarshal(text, &b))
	return b
}

// fleet is n nodes, gpu-00 and on; the even ones are from the old CA.
func fleet(h *harness, n int) {
	h.api.nodes = nil
	for i := range n {
		v := node()
		v.ID = fmt.Sprintf("0198f000-0000-7000-8000-0000000001%02d", i)
		v.Host = fmt.Sprintf("gpu-%02d", i)
		v.Identity = &trust.CertFacts{Issuer: fmt.Sprintf("CN=node CA g%d,O=gpuaas", 1+i%2)}
		h.api.nodes = append(h.api.nodes, v)
	}
}

func TestReissueMany(t *testing.T) {
	t.Parallel()
	many := func(h *harness, args ...string) []string {
		return append([]string{"node", "reissue-enrollment", "--out-dir", filepath.Join(h.env.dir, "out"), "--yes"}, args...)
	}
	t.Run("after a CA change", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 6)
		h.api.nodes[4].State = lifecycle.NodeRemoved
		h.golden("reissue-many", many(h, "--issuer", "CN=node CA g1,O=gpuaas", "--selector", "region=fra1", "--max-parallel", "1", "--no-wait")...)
		require.Len(t, h.api.reissued, 2)
		for _, host := range []string{"gpu-00", "gpu-02"} {
			path := filepath.Join(h.env.dir, "out", host+".recovery.json")
			require.Equal(t, os.FileMode(0o600), mode(t, path))
			require.Equal(t, enrollToken, readRecovery(t, path).EnrollmentToken)
		}
		require.Equal(t, os.FileMode(0o700), mode(t, filepath.Join(h.env.dir, "out")))
		require.NotContains(t, h.out.String(), enrollToken)
	})
	t.Run("some done, some waiting", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 3)
		h.temporal.reissueOf = func(id string) lifecycle.OperationStatus {
			switch {
			case strings.Contains(id, "00000000100"):
				return reissueAt(3, lifecycle.OperationCompleted)
			case strings.Contains(id, "00000000101"):
				return parkedReissue()
			}
			return reissueAt(1, lifecycle.OperationRunning)
		}
		h.golden("reissue-many-waiting", many(h, "--selector", "host=gpu-*", "--max-parallel", "1", "--wait", "--timeout", "1m")...)
	})
	t.Run("some failed", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 3)
		h.api.refuseReissue["gpu-01"] = schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
		h.api.refuseReissue["gpu-02"] = schema.NewError(schema.KindOperationInProgress, "cannot reissue-enrollment: reissue-enrollment is in progress on this node")
		h.golden("reissue-many-failed", many(h, "--selector", "sku=h100", "--max-parallel", "1", "--no-wait", "-o", "json")...)
	})
	t.Run("some accepted without a worker", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 2)
		h.api.refuseReissue["gpu-01"] = schema.NewError(schema.KindServiceUnavailable, "Temporal accepted operation 42, but no worker responded within 20s").
			WithReason(lifecycle.ReasonNoWorker)
		h.golden("reissue-many-accepted", many(h, "--selector", "sku=h100", "--max-parallel", "1", "--no-wait", "-o", "json")...)
	})
	t.Run("plan", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 3)
		h.api.nodes[1].State = lifecycle.NodeDraining
		h.golden("reissue-many-plan", "node", "reissue-enrollment", "--selector", "region=fra1", "--dry-run")
		require.Empty(t, h.api.reissued)
	})
	t.Run("asks", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 3)
		args := []string{"node", "reissue-enrollment", "--selector", "region=fra1", "--out-dir", filepath.Join(h.env.dir, "out")}
		require.Equal(t, schema.ExitUsage, h.run(args...))
		h.onTerminal("n\n")
		require.Equal(t, schema.ExitFailed, h.run(args...))
		require.Empty(t, h.api.reissued)
	})
	t.Run("no match", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Equal(t, schema.ExitNotFound, h.run(many(h, "--selector", "region=ams1")...))
	})
	t.Run("an interrupt starts no further one", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 3)
		ctx, interrupt := context.WithCancel(t.Context())
		h.temporal.reissueOf = func(string) lifecycle.OperationStatus {
			interrupt()
			return reissueAt(1, lifecycle.OperationRunning)
		}
		require.Equal(t, schema.ExitPending, h.runCtx(ctx, many(h, "--selector", "region=fra1", "--wait", "--max-parallel", "1")...))
		require.Len(t, h.api.reissued, 1)
		require.Contains(t, h.err.String(), "3 nodes: 2 not started, 1 waiting")
		require.Equal(t, 2, strings.Count(h.out.String(), "not started"), h.out.String())
	})
	t.Run("keeps to its budget", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		fleet(h, 12)
		asked, most, done := map[string]int{}, 0, 0
		h.temporal.reissueOf = func(id string) lifecycle.OperationStatus {
			most = max(most, len(h.api.reissued)-done)
			// Long enough for as many to start as may, and for too many.
			if asked[id]++; asked[id] < 20 || most < 3 && asked[id] < 10_000 {
				return reissueAt(1, lifecycle.OperationRunning)
			}
			done++
			return reissueAt(3, lifecycle.OperationCompleted)
		}
		require.Zero(t, h.run(many(h, "--selector", "region=fra1", "--wait", "--max-parallel", "3")...))
		require.Len(t, h.api.reissued, 12)
		require.Equal(t, 3, most)
		require.Contains(t, h.err.String(), "12 nodes: 12 done")
	})
}

func TestReissueAmongOperations(t *testing.T) {
	t.Parallel()
	t.Run("show", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := reissueAt(1, lifecycle.OperationRunning)
		h.temporal.reissue = &st
		h.golden("op-show-reissue", "op", "show", "gpu-17", "--reissue")
	})
	t.Run("show without the flag points at it", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := reissueAt(1, lifecycle.OperationRunning)
		h.temporal.reissue = &st
		require.Equal(t, schema.ExitNotFound, h.run("op", "show", "gpu-17"))
		require.Contains(t, h.err.String(), "next:  gpuaas op show gpu-17 --reissue")
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		require.Zero(t, h.run("op", "show", "gpu-17"))
		require.Contains(t, h.err.String(), "note: a reissue runs beside it: gpuaas op show gpu-17 --reissue")
	})
	t.Run("the record of the other one is not shown", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statusErr = noWorker()
		h.api.operations = []wire.OperationSummary{
			{NodeID: nodeID, OperationID: "r", Action: lifecycle.ActionReissueEnrollment, Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseClaim},
			{NodeID: nodeID, OperationID: "d", Action: lifecycle.ActionDrain, Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseDrain},
		}
		require.Zero(t, h.run("op", "show", "gpu-17", "-o", "json"))
		require.Contains(t, h.out.String(), `"operation_id": "d"`)
		require.Zero(t, h.run("op", "show", "gpu-17", "--reissue", "-o", "json"))
		require.Contains(t, h.out.String(), `"operation_id": "r"`)
	})
	t.Run("decisions go where they are meant", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return reissueAt(1, lifecycle.OperationRunning), nil
		}
		st := reissueAt(1, lifecycle.OperationRunning)
		st.Operation.OperationID = reissueOf + nodeID
		h.temporal.reissue, h.temporal.statuses = &st, []lifecycle.OperationStatus{parkedDrain()}
		require.Zero(t, h.run("op", "cancel", "gpu-17", "--reissue", "--reason", "wrong node"))
		require.Equal(t, lifecycle.ReissueWorkflowID("gpu-17", nodeID), h.temporal.decidedOn)
		require.Zero(t, h.run("op", "cancel", "gpu-17", "--reason", "wrong node"))
		require.Equal(t, lifecycle.NodeWorkflowID("gpu-17", nodeID), h.temporal.decidedOn)
	})
	t.Run("a decision without an operation points at the reissue", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := reissueAt(1, lifecycle.OperationRunning)
		h.temporal.reissue = &st
		require.Equal(t, schema.ExitNotFound, h.run("op", "cancel", "gpu-17", "--reason", "wrong node"))
		require.Contains(t, h.err.String(), "next:  gpuaas op cancel gpu-17 --reissue")
	})
	t.Run("watch", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		done := reissueAt(3, lifecycle.OperationCompleted)
		done.Operation.OperationID = reissueOf + nodeID
		h.temporal.reissue, h.temporal.result = &done, &done
		require.Zero(t, h.run("op", "watch", "gpu-17", "--reissue"))
		require.Contains(t, h.out.String(), "reissue-enrollment gpu-17: completed")
	})
	t.Run("stuck lists it", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.parked = []lifecycle.OperationStatus{parkedReissue(), parkedDrain()}
		h.temporal.parked[1].Operation.OperationID = "other"
		h.api.operations = []wire.OperationSummary{{NodeID: nodeID, Host: "gpu-17", OperationID: "late", Action: lifecycle.ActionReissueEnrollment,
			Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseClaim, StartedAt: start().Add(-48 * time.Hour)}}
		h.golden("stuck-reissue", "stuck")
	})
}

func TestBootstrapScript(t *testing.T) {
	t.Parallel()
	t.Run("to stdout", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("script", "node", "bootstrap-script", "gpu-17")
		require.Equal(t, []wire.BootstrapScriptRequest{{}}, h.api.scripts)
	})
	t.Run("to a file, with a reference", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		path := filepath.Join(h.env.dir, "b.sh")
		h.golden("script-file", "node", "bootstrap-script", "gpu-17", "--fetch-ref", "--out", path)
		require.Equal(t, []wire.BootstrapScriptRequest{{FetchRef: true}}, h.api.scripts)
		require.Equal(t, os.FileMode(0o600), mode(t, path))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "#!/bin/sh\n"))
		require.Zero(t, h.run("node", "bootstrap-script", "gpu-17", "--out", path, "-o", "json"))
		require.NotContains(t, h.out.String(), enrollToken)
	})
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("node", "bootstrap-script", "gpu-17", "-o", "json"))
		var answer wire.BootstrapScriptResponse
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &answer))
		require.Contains(t, answer.Script, enrollToken)
	})
	t.Run("without a read of the node", func(t *testing.T) {
		t.Parallel()
		h := setup(t) // the role bootstrapper may not read nodes
		require.Zero(t, h.run("node", "bootstrap-script", "gpu-17"), h.err.String())
		require.Len(t, h.api.requests, 1)
		require.Contains(t, h.api.requests[0], "POST /api/v1/admin/nodes/gpu-17/bootstrap-script ")
		require.Equal(t, schema.ExitNotFound, h.run("node", "bootstrap-script", "gpu-99"))
	})
	t.Run("nothing is minted when the file cannot be made", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Equal(t, schema.ExitRefused, h.run("node", "bootstrap-script", "gpu-17", "--out", filepath.Join(h.env.dir, "none", "b.sh")))
		require.Empty(t, h.api.scripts)
	})
}

func TestNodeShowIdentity(t *testing.T) {
	t.Parallel()
	h := setup(t)
	digest := strings.Repeat("0a1b2c3d", 8)
	n := &h.api.nodes[0]
	n.Identity = &trust.CertFacts{Subject: "CN=" + nodeID, URI: "spiffe://dev/node/" + nodeID + "/2", Issuer: "CN=node CA g1", Serial: "4f2a",
		Fingerprint: digest, NotBefore: start().Add(-time.Hour), NotAfter: start().Add(71 * time.Hour)}
	n.PendingIdentity = &trust.CertFacts{Issuer: "CN=node CA g2", Serial: "4f2b", Fingerprint: digest, NotAfter: start().Add(72 * time.Hour)}
	n.Incarnation, n.IdentitySequence, n.SetVersion, n.NewestSetVersion = 2, 5, 2, 3
	n.IdentityLock = &trust.IdentityLock{Reason: "clone: serial 4f29 was used after it was replaced", Since: start().Add(-time.Minute)}
	n.TrustedCAs = []trust.CertFacts{{Subject: "CN=node CA g2", Issuer: "CN=node CA g2", Fingerprint: digest,
		NotBefore: start().Add(-24 * time.Hour), NotAfter: start().Add(24 * 365 * time.Hour)}}
	h.golden("node-show-identity", "node", "show", "gpu-17")
	require.Contains(t, h.out.String(), "Mismatch:")

	n.TrustedCAs[0].Subject = "CN=node CA g1"
	require.Zero(t, h.run("node", "show", "gpu-17"))
	require.NotContains(t, h.out.String(), "Mismatch:")
}
