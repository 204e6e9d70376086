package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

// rotationAPI answers with one rotation and keeps what it was asked.
type rotationAPI struct {
	view rotation.View
	err  *schema.Error
	path string
	body map[string]any
}

func (a *rotationAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.path, a.body = r.Method+" "+r.URL.Path, nil
	json.NewDecoder(r.Body).Decode(&a.body) //nolint:errcheck // a GET has no body
	w.Header().Set("Content-Type", "application/json")
	if a.err != nil {
		w.WriteHeader(a.err.Kind.Info().HTTP)
		json.NewEncoder(w).Encode(a.err.Body("c")) //nolint:errcheck // a test's connection
		return
	}
	if a.body["dry_run"] == true {
		r, p := a.view.Rotation, a.view.Progress
		if r.Kind == rotation.NodeCA {
			r.OldKey, p.Waiting = "", []rotation.Waiting{} // there is no new CA yet that a node could lack
		}
		json.NewEncoder(w).Encode(rotation.Preview(r, p)) //nolint:errcheck // a test's connection
		return
	}
	if r.Method == http.MethodPost && r.URL.Path == "/api/v1/admin/trust/rotation" {
		w.WriteHeader(http.StatusAccepted)
	}
	json.NewEncoder(w).Encode(a.view) //nolint:errcheck // a test's connection
}

// rotating returns a command line whose API has a rotation of the node CA in a phase.
func rotating(t *testing.T, phase rotation.Phase) (*harness, *rotationAPI) {
	t.Helper()
	r := rotation.Begin(rotation.NodeCA, "g1", rotation.DefaultGrace)
	r.RotationID, r.Phase, r.NewKey, r.Actor, r.Reason = operationID, phase, "g2", "alice", "yearly"
	r.StartedAt, r.PhaseSince, r.CheckedAt = start(), start(), start()
	r.CA = rotation.CA{Bundle: "b0", Issuer: "CN=gpuaas dev node CA G2", IssuerKey: "0a"}
	p := rotation.Progress{Nodes: 3, Confirmed: 1, Waived: 1, Replicas: 2, Reloaded: 1, Waiting: []rotation.Waiting{
		{NodeID: nodeID, Host: "gpu-17", State: "offline", Issuer: "CN=gpuaas dev node CA G1", CABundle: "0123456789abcdef", LastHeartbeatAt: at(0)}}}
	a := &rotationAPI{view: rotation.Describe(r, p, start())}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	h := setup(t)
	h.vars["GPUAAS_API_URL"] = s.URL
	return h, a
}

// TestRotateNodeCA: the start and the decisions send what the operator asked for, and show what
// the phase waits for, with the nodes by name.
func TestRotateNodeCA(t *testing.T) {
	t.Parallel()
	h, a := rotating(t, rotation.Stage)
	h.golden("rotate-node-ca-dry-run", "rotate", "node-ca", "--reason", "yearly", "--dry-run")
	require.Equal(t, map[string]any{"kind": "node-ca", "reason": "yearly", "grace_seconds": 90000.0, "dry_run": true}, a.body)
	h.golden("rotate-node-ca-dry-run-json", "rotate", "node-ca", "--reason", "yearly", "--dry-run", "-o", "json")
	h.golden("rotate-show-stage", "rotate", "show")
	require.Equal(t, "GET /api/v1/admin/trust/rotation", a.path)
	require.Zero(t, h.run("rotate", "waive", "--node", "gpu-17", "--reason", "in repair"))
	require.Equal(t, "POST /api/v1/admin/trust/rotation/waive", a.path)
	require.Equal(t, map[string]any{"reason": "in repair", "nodes": []any{"gpu-17"}}, a.body)
	for _, d := range []string{"approve", "pause", "resume", "rollback"} {
		require.Zero(t, h.run("rotate", d, "--reason", "CHG-1"), d)
		require.Equal(t, "POST /api/v1/admin/trust/rotation/"+d, a.path)
		require.Equal(t, map[string]any{"reason": "CHG-1"}, a.body)
	}
}

// TestRevokeDryRun: a dry run of a revocation is a plan, not a rotation.
func TestRevokeDryRun(t *testing.T) {
	t.Parallel()
	h, a := rotating(t, rotation.Stage)
	a.view.Kind, a.view.OldKey, a.view.CA = rotation.RevokeKey, "task-prod.v3", rotation.CA{}
	h.golden("trust-revoke-dry-run", "trust", "revoke", "task-prod.v3", "--reason", "INC-77", "--dry-run")
	h.golden("trust-revoke-dry-run-json", "trust", "revoke", "task-prod.v3", "--reason", "INC-77", "--dry-run", "-o", "json")
}

// TestRotateShow: each phase shows what a waiting node has instead of what is required.
func TestRotateShow(t *testing.T) {
	t.Parallel()
	h, a := rotating(t, rotation.Activate)
	h.golden("rotate-show-activate", "rotate", "show")
	h, _ = rotating(t, rotation.Grace)
	h.golden("rotate-show-grace", "rotate", "show")
	a.err = schema.NewError(schema.KindInvalidRequest, "phase retire cannot be undone").WithReason("not_reversible").WithNext("gpuaas rotate show")
	h, a2 := rotating(t, rotation.Retire)
	a2.err = a.err
	h.golden("rotate-rollback-refused", "rotate", "rollback", "--reason", "CHG-1")
}

// TestNoRotation: an installation without a rotation is not an error, and programs get an empty object.
func TestNoRotation(t *testing.T) {
	t.Parallel()
	h, a := rotating(t, rotation.Stage)
	a.err = schema.NewError(schema.KindNotFound, "there is no rotation")
	require.Equal(t, schema.ExitDone, h.run("rotate", "show"))
	require.Empty(t, h.out.String())
	require.Equal(t, "there is no rotation\n", h.err.String())
	require.Equal(t, schema.ExitDone, h.run("rotate", "show", "-o", "json"))
	require.JSONEq(t, "{}", h.out.String())
	require.Equal(t, schema.ExitDone, h.run("rotate", "show", "-o", "name"))
	require.Empty(t, h.out.String())
	require.Equal(t, schema.ExitNotFound, h.run("rotate", "approve", "--reason", "CHG-1"), "a decision needs a rotation")
}

// A misspelled command is named, also with flags that the group does not have.
func TestMisspelledCommandWithFlags(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Equal(t, schema.ExitUsage, h.run("rotate", "nodeca", "--reason", "yearly"))
	require.Contains(t, h.err.String(), `unknown command "nodeca" for "gpuaas rotate"; did you mean node-ca?`)
	require.Equal(t, schema.ExitUsage, h.run("rotate", "--reason", "yearly"))
	require.Contains(t, h.err.String(), "unknown flag: --reason")
	require.Equal(t, schema.ExitUsage, h.run("rotate", "task-key"))
	require.Contains(t, h.err.String(), "gpuaas rotate task-key --help")
	require.Equal(t, schema.ExitUsage, h.run("trust", "revoke", "task-prod.v3"))
	require.Contains(t, h.err.String(), "missing --reason")
}

// A workload driver that no agent of this build has is allowed, with a warning.
func TestUnknownDriverIsNamed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.run("node", "set", "gpu-17", "--workload-driver", "podman")
	require.Contains(t, h.err.String(), `warning: the workload driver "podman" is not one of systemd, docker, kubernetes or none`)
	h.run("node", "set", "gpu-17", "--workload-driver", "docker,podman")
	require.Contains(t, h.err.String(), `warning: the workload driver "podman" is not`)
	h.run("node", "set", "gpu-17", "--workload-driver", "docker,systemd")
	require.NotContains(t, h.err.String(), "warning")
}

// A phase whose set is not published has no confirmations, although all nodes have the set before.
func TestConfirmationsOfASet(t *testing.T) {
	t.Parallel()
	v := rotation.View{Rotation: rotation.Rotation{Kind: rotation.RevokeKey}, Progress: rotation.Progress{Nodes: 2, Confirmed: 2}}
	require.Equal(t, "- (the set is not published yet)", confirmedText(v))
	v.SetVersion = 10
	require.Equal(t, "set 10 by 2 of 2 nodes, 0 waived", confirmedText(v))
}

// A rotation at which nothing looks names the command that starts its workflow again.
func TestStalledRotation(t *testing.T) {
	t.Parallel()
	v := rotation.View{Rotation: rotation.Rotation{CheckedAt: start()}, Blockers: []rotation.Blocker{rotation.BlockedWorker}}
	require.Equal(t, "a worker with the rotator's login, and gpuaas rotate resume --reason TEXT (last checked "+start().Format(time.RFC3339)+")", blockersText(v))
}
