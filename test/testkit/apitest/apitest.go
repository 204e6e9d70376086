// Package apitest serves the admin API in the test's process on a Postgres database of its own. An
// operation claims its node in the database as a workflow does, and ends when the test calls Finish.
package apitest

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// Token is a token with the role admin.
const Token = "test-admin-token-0123456789"

// Server is a running admin API.
type Server struct {
	// URL is the address of the API.
	URL string

	tb       testing.TB
	store    *store.Store
	database string
}

// New starts the API. wrap, if not nil, sees each request before the API.
func New(tb testing.TB, wrap func(http.Handler) http.Handler) *Server {
	tb.Helper()
	url := pgtest.New(tb, store.Migrate)
	s, err := store.Open(tb.Context(), store.Config{URL: url})
	require.NoError(tb, err)
	tb.Cleanup(s.Close)
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(Token)), "admin-token", "")
	require.NoError(tb, err)
	api := adminapi.New(adminapi.Config{Env: "test", NodeURL: "https://nodes.test:8443", Auth: tokens,
		Nodes: s.Admin, SKUs: s.Admin, Machines: s.Machines, EnrollmentTokens: s.Identities, Locks: s.Identities,
		Operations: s.Admin, Tasks: s.Tasks, Trail: s.Admin, Signals: s.Signals, Templates: s.Templates, Repairs: s.Repairs,
		Checkpoints:    s.Checkpoints,
		CheckpointKeys: func(context.Context) (map[string]ed25519.PublicKey, error) { return nil, nil },
		Lifecycle:      claimer{s}, Trust: noTrust{}, Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Ready: func() error { return nil }})
	h := api.Handler()
	if wrap != nil {
		h = wrap(h)
	}
	server := httptest.NewServer(h)
	tb.Cleanup(server.Close)
	return &Server{URL: server.URL, tb: tb, store: s, database: url}
}

// Finish ends the operation that holds a node with the status, and leaves the node in the state.
func (s *Server) Finish(nodeID string, status lifecycle.OperationState, state lifecycle.NodeState) {
	s.tb.Helper()
	f, document := s.holding(nodeID)
	document.Node.State = state
	document.Operation.End(status, "ended by the test", time.Now())
	require.NoError(s.tb, s.store.Operations.Finish(s.tb.Context(), f, "", activities.Finish{Status: status, Node: state, Document: &document, Outcome: document.Operation.Outcome}))
}

// Park parks the operation that holds a node until Finish, and returns since when.
func (s *Server) Park(nodeID string) (since time.Time) {
	s.tb.Helper()
	f, document := s.holding(nodeID)
	since = time.Now().UTC().Truncate(time.Microsecond)
	stuck := lifecycle.Stuck{Phase: lifecycle.PhaseTeardown, WaitingOn: lifecycle.AttentionOperator, Reason: "test", Message: "the test parked it",
		Since: since, Options: []lifecycle.Option{{Decision: lifecycle.DecisionRetry, Does: "Try again", Harm: lifecycle.HarmNone}}}
	document.Operation.Status, document.Operation.Stuck = lifecycle.OperationParked, &stuck
	require.NoError(s.tb, s.store.Operations.Advance(s.tb.Context(), f, "", activities.Advance{Phase: stuck.Phase, Step: 1, Document: &document, Stuck: &stuck, ParkID: "1"}))
	return since
}

// SetState puts a node, by its ID or host name, into a state without an operation.
func (s *Server) SetState(node string, state lifecycle.NodeState) {
	s.tb.Helper()
	conn, err := pgx.Connect(s.tb.Context(), s.database)
	require.NoError(s.tb, err)
	defer func() { _ = conn.Close(context.WithoutCancel(s.tb.Context())) }()
	_, err = conn.Exec(s.tb.Context(), "UPDATE nodes SET state = $1 WHERE $2 IN (node_id::text, host)", string(state), node)
	require.NoError(s.tb, err)
}

// holding returns the operation that holds a node.
func (s *Server) holding(nodeID string) (activities.Fence, lifecycle.OperationStatus) {
	s.tb.Helper()
	node, err := s.store.Admin.Node(s.tb.Context(), nodeID)
	require.NoError(s.tb, err)
	require.NotNil(s.tb, node.Operation, "no operation holds node %s", node.Host)
	o := node.Operation
	return activities.Fence{NodeID: nodeID, OperationID: o.OperationID, OpSeq: o.OpSeq, Actor: "test"},
		lifecycle.OperationStatus{Node: lifecycle.NodeRef{NodeID: nodeID, Host: node.Host, State: node.State},
			Operation: lifecycle.Operation{OperationID: o.OperationID, WorkflowID: o.WorkflowID, RunID: o.RunID, Action: o.Action, Status: o.Status, OpSeq: o.OpSeq}}
}

// claimer starts operations by claiming their node.
type claimer struct{ store *store.Store }

func (c claimer) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	workflow := lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
	op := lifecycle.Operation{OperationID: in.OperationID, Reason: in.Reason, Options: in.Options.Requested(), WorkflowID: workflow,
		RunID: "run-" + in.OperationID, Action: in.Action, Status: lifecycle.OperationAccepted}
	claim, err := c.store.Operations.Claim(ctx, activities.ClaimRequest{OperationInput: in, WorkflowID: workflow, RunID: op.RunID,
		Document: &lifecycle.OperationStatus{Operation: op}})
	op.OpSeq = claim.Fence.OpSeq
	return op, err
}

// Resolve accepts each decision about a parked operation and changes nothing.
func (c claimer) Resolve(ctx context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	st, err := c.store.Admin.Operation(ctx, r.OperationID)
	if err == nil && st.Operation.Stuck == nil {
		return st, schema.NewError(schema.KindDecisionOutdated, "%s is not parked", workflowID)
	}
	return st, err
}

// Resolved finds no decision, because Resolve keeps none.
func (claimer) Resolved(context.Context, string, string, lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no such decision")
}

// RunEnds has an open run for every operation.
func (claimer) RunEnds(_ context.Context, ops []lifecycle.Operation) ([]lifecycle.RunEnd, []error) {
	return make([]lifecycle.RunEnd, len(ops)), make([]error, len(ops))
}

// RunFaults has no calls.
func (claimer) RunFaults(context.Context, lifecycle.Operation) ([]wire.ControlPlaneFault, error) {
	return nil, nil
}

// noTrust has no node CA and no keys.
type noTrust struct{}

func (noTrust) ServerCA(context.Context) (string, error) { return "", nil }

func (noTrust) NodeCA(context.Context) (string, error) { return "", nil }

func (noTrust) TaskTrust(context.Context) (trust.TaskTrust, error) { return trust.TaskTrust{}, nil }
