package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestReissueLostIdentity: a node that lost certificate, keys and tokens receives a new
// identity. The operation waits until the node polls with it and reports this. Earlier
// tokens are void.
func TestReissueLostIdentity(t *testing.T) {
	nodeHost, id := register(t, "reissue")
	file := filepath.Join(t.TempDir(), "bundle.json")
	ok(t, "node", "enroll", nodeHost, "--no-wait", "--bundle", file)
	first := readPrivate[trust.BootstrapBundle](t, file)
	m := newMachine(t, nodeHost, first)
	m.start()
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	before := show(t, id)
	m.stop()
	m.loseIdentity()

	file = filepath.Join(t.TempDir(), "recovery.json")
	printed := ok(t, "node", "reissue-enrollment", nodeHost, "--no-wait", "--reason", "disk replaced", "--bundle", file)
	bundle := readPrivate[wire.RecoveryBundle](t, file)
	require.Equal(t, bundle.RestartCommand, strings.TrimSpace(printed.stdout), "stdout contains only the command")
	require.NotContains(t, printed.stderr, trust.TokenPrefix)
	m.start() // without a token it waits
	eventually(t, "it waits for the claim", func() bool { return reissueOf(t, nodeHost).Phase(lifecycle.PhaseClaim) == lifecycle.PhaseRunning })
	require.Equal(t, lifecycle.OperationRunning, reissueOf(t, nodeHost).Status)
	require.Contains(t, ok(t, "op", "show", nodeHost, "--reissue").stdout, "run the restart command of the recovery bundle on the node")
	require.Contains(t, detailsOf(t, lifecycle.ReissueWorkflowID(nodeHost, id)), "claims the new token", "the Web UI does not show what it is waiting on")
	require.Equal(t, before.Incarnation, show(t, id).Incarnation)
	requireSpent(t, id, first)
	m.stop()

	require.Contains(t, m.shell(bundle.RestartCommand), "restart "+trust.DefaultSystemdUnit)
	m.start()
	eventually(t, "the reissue is done", func() bool { return reissueOf(t, nodeHost).Status == lifecycle.OperationCompleted })
	after := show(t, id)
	require.Equal(t, before.State, after.State)
	require.Equal(t, before.Incarnation+1, after.Incarnation)
	require.NotEqual(t, before.Identity.Serial, after.Identity.Serial)
	require.NotEqual(t, before.Identity.SPKI, after.Identity.SPKI)
	requireSpent(t, id, bundle.BootstrapBundle)
	require.Equal(t, []string{"accepted: disk replaced", "succeeded: token issued", "succeeded: reissued; its agent polls with the new identity"},
		auditedReissue(t, id))
	ok(t, "audit", "--verify")
	record(t, id, "reissue")
}

// TestNewIdentityAtReactivation: a reactivation gives the node new keys without an operator on the
// node. A copy of its disk from before gets nothing, and cannot have the node locked.
func TestNewIdentityAtReactivation(t *testing.T) {
	nodeHost, id := register(t, "renewed")
	file := filepath.Join(t.TempDir(), "bundle.json")
	ok(t, "node", "enroll", nodeHost, "--no-wait", "--bundle", file)
	m := newMachine(t, nodeHost, readPrivate[trust.BootstrapBundle](t, file))
	m.write(trust.DefaultEnvFile, content(t, m.path(trust.DefaultEnvFile))+"GPUAAS_WORKLOAD_DRIVER=none\n", 0o600)
	m.start()
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	ok(t, "node", "retire", nodeHost, "--yes", "--wait")
	before := show(t, id)
	copied := &machine{t: t, root: t.TempDir()}
	require.NoError(t, os.CopyFS(copied.root, os.DirFS(m.root)))

	planned := ok(t, "node", "reactivate", nodeHost, "--new-identity", "--dry-run")
	require.Contains(t, planned.stdout+planned.stderr, "Give the node a new identity")
	ok(t, "node", "reactivate", nodeHost, "--new-identity", "--wait", "--reason", "next user")
	after := show(t, id)
	require.Equal(t, lifecycle.NodeActive, after.State)
	require.Equal(t, before.Incarnation+1, after.Incarnation)
	require.NotEqual(t, before.Identity.SPKI, after.Identity.SPKI)
	for _, name := range []string{trust.DefaultStateDir + "/recovery-key.pem", trust.DefaultEnvFile, trust.DefaultKeyPath} {
		require.NotEqual(t, content(t, copied.path(name)), content(t, m.path(name)), name)
	}

	copied.start()
	t.Cleanup(copied.stop)
	log := filepath.Join(shared.Dir, "log", "host-"+filepath.Base(copied.root)+".log")
	eventually(t, "the copy is refused", func() bool { return strings.Contains(content(t, log), schema.ReasonIdentityMismatch) })
	require.Nil(t, show(t, id).IdentityLock)
	ok(t, "node", "drain", nodeHost, "--yes", "--wait")
	ok(t, "audit", "--verify")
	record(t, id, "renewed")
}

// auditedReissue returns the audit events of the node's reissues.
func auditedReissue(t *testing.T, id string) (out []string) {
	t.Helper()
	for _, e := range auditEvents(t, id) {
		switch {
		case e.Action == "nodes.reissue_enrollment":
			out = append(out, e.Result+": "+e.Reason+e.Detail["outcome"])
		case e.Action == audit.TokenIssued && e.Detail["purpose"] == string(trust.PurposeReissue):
			out = append(out, e.Result+": token issued")
		}
	}
	return out
}

// reissuedOperation is the latest reissue of a node.
type reissuedOperation struct{ lifecycle.Operation }

func reissueOf(t *testing.T, nodeHost string) reissuedOperation {
	t.Helper()
	r := ok(t, "op", "show", nodeHost, "--reissue", "-o", "json")
	return reissuedOperation{decode[lifecycle.OperationStatus](t, r).Operation}
}

// Phase returns the state of a phase, "" if it has not started.
func (o reissuedOperation) Phase(name string) lifecycle.PhaseState {
	for _, p := range o.Phases {
		if p.Name == name {
			return p.State
		}
	}
	return ""
}

// requireSpent verifies that the bundle's token is rejected.
func requireSpent(t *testing.T, id string, b trust.BootstrapBundle) {
	t.Helper()
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(b.CABundlePEM)))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()
	status, detail := call(ctx, t, client, http.MethodPost, "/internal/v1/nodes/"+id+"/enroll",
		`{"token":"`+b.EnrollmentToken+`","csr":`+jsonCSR(t)+`,"agent_version":"thief"}`)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, schema.KindTokenConsumed, detail.Code)
}

// TestReissueBySelector: one command for all matching nodes, with one file per node.
func TestReissueBySelector(t *testing.T) {
	group := host(t, "many")
	var ids []string
	for _, n := range []string{"-a", "-b"} {
		ids = append(ids, strings.TrimSpace(ok(t, "node", "register", group+n, "--sku", "cpu-dev", "--region", "region-1").stdout))
	}
	dir := t.TempDir()
	many := []string{"node", "reissue-enrollment", "--selector", "host=" + group + "-*", "--out-dir", filepath.Join(dir, "out"), "--no-wait", "-o", "json"}
	require.Equal(t, schema.ExitUsage, run(t, many...).code, "without a terminal it requires --yes")
	result := decode[struct {
		Reissues []struct{ Host, Outcome, File string }
		Summary  map[string]int
	}](t, ok(t, append(many, "--yes", "--reason", "CA changed")...))
	require.Equal(t, map[string]int{"written": 2}, result.Summary)
	tokens := map[string]bool{}
	for i, r := range result.Reissues {
		b := readPrivate[wire.RecoveryBundle](t, r.File)
		require.Equal(t, ids[i], b.NodeID)
		require.NotEmpty(t, b.RestartCommand)
		tokens[b.EnrollmentToken] = true
		require.Contains(t, ok(t, "audit", "--node", ids[i], "-o", "json").stdout, "nodes.reissue_enrollment")
		ok(t, "op", "cancel", r.Host, "--reissue", "--reason", "test")
		eventually(t, "canceled", func() bool { return reissueOf(t, r.Host).Status == lifecycle.OperationCanceled })
	}
	require.Len(t, tokens, 2, "each node has its own token")
	left, err := os.ReadDir(filepath.Join(dir, "out"))
	require.NoError(t, err)
	require.Len(t, left, 2)
}

// requireNoReissue verifies that a reissue is rejected.
func requireNoReissue(t *testing.T, node string, state lifecycle.NodeState) {
	t.Helper()
	r := run(t, "node", "reissue-enrollment", node, "--no-wait", "-o", "json")
	require.Equal(t, schema.ExitRefused, r.code, "%s%s", r.stdout, r.stderr)
	envelope := decode[schema.ErrorBody](t, r)
	require.Equal(t, schema.KindInvalidRequest, envelope.Error.Code)
	require.Contains(t, envelope.Error.Message, string(state))
	require.NotEmpty(t, envelope.Error.CorrelationID)
}
