package faults_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// world is shared by sequential runs: a database with its clock, and the server CA.
type world struct {
	db     *database
	store  *store.Store
	cert   *tls.Certificate
	caPath string
	dir    string
	runs   int
}

var operator = audit.Subject{Actor: "alice@ops", CorrelationID: "by-hand"}

func newWorld(tb testing.TB, running bool) *world {
	tb.Helper()
	w := &world{db: newDatabase(tb, running), dir: tb.TempDir()}
	var err error
	w.store, err = store.Open(tb.Context(), store.Config{URL: w.db.url, MaxConns: 8})
	require.NoError(tb, err)
	tb.Cleanup(w.store.Close)
	ca, err := newGeneration("server CA", seeded(0, forCA))
	require.NoError(tb, err)
	w.cert, err = ca.serverCert()
	require.NoError(tb, err)
	w.caPath = filepath.Join(w.dir, "server-ca.pem")
	require.NoError(tb, os.WriteFile(w.caPath, []byte(ca.pem()), 0o600))
	return w
}

// register adds a node and starts its enrollment, like the workflow.
// Its id derives from the seed, because agents derive random values from it.
func (w *world) register(ctx context.Context, seed uint64) (nodeID string, err error) {
	w.runs++
	n, err := w.store.Admin.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: fmt.Sprintf("node-%d", w.runs), SKU: "cpu-dev", RegionCode: "region-1"}, operator)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("00000000-0000-7000-8000-%012x", seed)
	if _, err := w.db.raw.Exec(ctx, "UPDATE nodes SET node_id = $2 WHERE node_id = $1", n.ID, id); err != nil {
		return "", err
	}
	return id, w.claim(ctx, id, lifecycle.ActionEnroll)
}

func (w *world) claim(ctx context.Context, nodeID string, a lifecycle.Action) error {
	n, err := w.store.Admin.Node(ctx, nodeID)
	if err != nil {
		return err
	}
	_, err = w.store.Operations.Claim(ctx, activities.ClaimRequest{WorkflowID: lifecycle.NodeWorkflowID(n.Host, nodeID), RunID: schema.NewID(),
		OperationInput: lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: nodeID, Action: a, Actor: operator.Actor,
			CorrelationID: operator.CorrelationID}})
	return err
}

// finish ends the operation that holds the node, if one does.
func (w *world) finish(ctx context.Context, nodeID string, f activities.Finish) error {
	n, err := w.store.Admin.Node(ctx, nodeID)
	if err != nil || n.Operation == nil {
		return err
	}
	return w.store.Operations.Finish(ctx, activities.Fence{NodeID: nodeID, OperationID: n.Operation.OperationID, OpSeq: n.Operation.OpSeq,
		Actor: operator.Actor}, "", f)
}

// issue creates a token as an operator and returns it.
func (w *world) issue(ctx context.Context, nodeID string, purpose trust.TokenPurpose) (string, error) {
	text, id, hash := trust.NewToken()
	return text, w.store.Identities.IssueToken(ctx, trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: purpose,
		ExpiresAt: w.db.clock.Now().Add(trust.TokenTTL)}, operator)
}

// remove removes the node and signs the removal.
func (w *world) remove(ctx context.Context, nodeID string) error {
	done := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired}
	gone := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, DenyIdentity: true}
	return errors.Join(w.claim(ctx, nodeID, lifecycle.ActionRetire), w.finish(ctx, nodeID, done),
		w.claim(ctx, nodeID, lifecycle.ActionRemove), w.finish(ctx, nodeID, gone),
		w.signRemovals(ctx))
}

// verifyAudit verifies the node's audit chain.
func (w *world) verifyAudit(ctx context.Context, stream string) error {
	events, err := w.store.Admin.AuditStream(ctx, stream, 0, 10_000)
	if err != nil {
		return err
	}
	return audit.VerifyChain(nil, events)
}
