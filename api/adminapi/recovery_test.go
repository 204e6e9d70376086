package adminapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// recoveryRows keeps one policy and what it was asked.
type recoveryRows struct {
	adminapi.Recovery
	policy  record.Policy
	past    []record.Policy
	changes int
	closed  string
	query   adminapi.DecisionQuery
}

func (f *recoveryRows) Policy(context.Context) (record.Policy, error) { return f.policy, nil }

func (f *recoveryRows) RecoveryStatus(context.Context) (record.Status, error) {
	return record.Status{Policy: f.policy, Budgets: []record.Budget{{Size: recovery.Size{Scope: recovery.ScopeFleet, Nodes: 100}},
		{Size: recovery.Size{Scope: recovery.ScopeRack, Key: "r1", Nodes: 20}}}}, nil
}

func (f *recoveryRows) ListDecisions(_ context.Context, q adminapi.DecisionQuery) ([]record.Decision, []string, error) {
	f.query = q
	return nil, nil, nil
}

func (f *recoveryRows) ChangePolicy(_ context.Context, change func(record.Policy) (recovery.Policy, error), reason string, by audit.Subject) (record.Policy, error) {
	p, err := change(f.policy)
	if err != nil {
		return f.policy, err
	}
	f.changes++
	f.policy, err = record.Stored(p)
	f.policy.Version, f.policy.Actor, f.policy.Reason = int64(f.changes), by.Actor, reason
	return f.policy, err
}

func (f *recoveryRows) CloseBreaker(_ context.Context, reason string, _ audit.Subject) (recovery.BreakerState, error) {
	f.closed = reason
	return recovery.BreakerState{}, nil
}

// askRecovery sends a request as a subject with the role, and decodes the response.
func askRecovery(t *testing.T, f *recoveryRows, role, method, path, body string, into any) (int, schema.ErrorBody) {
	t.Helper()
	hash := sha256.Sum256([]byte(token))
	tokens, err := adminapi.NewTokens(hash, "ops", "")
	require.NoError(t, err)
	var auth adminapi.Authenticator = tokens
	if role != string(trust.RoleAdmin) {
		auth = withRole(role)
	}
	h := adminapi.New(adminapi.Config{Auth: auth, Recovery: f, Nodes: newBackend(), Lifecycle: newBackend(), Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil }}).Handler()
	r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/admin/recovery"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var failure schema.ErrorBody
	if w.Code < http.StatusBadRequest && into != nil {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), into), w.Body.String())
	} else if w.Code >= http.StatusBadRequest {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &failure), w.Body.String())
	}
	return w.Code, failure
}

// withRole authenticates every request as a subject with the role.
type withRole string

func (r withRole) Authenticate(*http.Request) (adminapi.Subject, error) {
	return adminapi.Subject{Name: "ops", Role: trust.Role(r)}, nil
}

func newPolicy(t *testing.T) *recoveryRows {
	t.Helper()
	p, err := record.DefaultPolicy()
	require.NoError(t, err)
	return &recoveryRows{policy: p}
}

// TestSetPolicy: a policy is stored with its defaults. A dry run stores nothing, and a malformed policy
// is rejected with the field while the policy in use stays.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	f := newPolicy(t)
	var p record.Policy
	code, _ := askRecovery(t, f, "admin", http.MethodPost, "/policy", `{"body": {"samples": 9}, "reason": "", "dry_run": true}`, &p)
	require.Equal(t, http.StatusOK, code)
	require.Zero(t, f.changes)
	require.Zero(t, p.Version)
	code, _ = askRecovery(t, f, "admin", http.MethodPost, "/policy", `{"body": {"samples": 9}, "reason": "CHG-1"}`, &p)
	require.Equal(t, http.StatusOK, code)
	policy, err := p.Decode()
	require.NoError(t, err)
	require.Equal(t, 9, policy.Samples)
	require.Equal(t, recovery.Default().Breaker, policy.Breaker)
	require.Equal(t, []any{int64(1), "ops", "CHG-1"}, []any{p.Version, p.Actor, p.Reason})
	for body, field := range map[string]string{
		`{"body": {"samples": -1}, "reason": "r"}`:              "samples",
		`{"body": {"sample": 1}, "reason": "r"}`:                "sample",
		`{"body": {"mode": "off"}, "reason": "r"}`:              "mode",
		`{"body": {"samples": 9}, "reason": ""}`:                "reason",
		`{"body": "text", "reason": "r"}`:                       "",
		`{"reason": "r"}`:                                       "",
		`{"body": {"samples": 9, "samples": 2}, "reason": "r"}`: "samples",
	} {
		code, failure := askRecovery(t, f, "admin", http.MethodPost, "/policy", body, nil)
		require.Equal(t, http.StatusBadRequest, code, body)
		require.Contains(t, failure.Error.Message, field, body)
	}
	require.Equal(t, 1, f.changes)
}

// TestArm: arm and disarm change only the mode of the policy in use. A policy that this program
// cannot read stays as it is.
func TestArm(t *testing.T) {
	t.Parallel()
	f := newPolicy(t)
	var p record.Policy
	code, _ := askRecovery(t, f, "admin", http.MethodPost, "/arm", `{"reason": "CHG-1"}`, &p)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, recovery.ModeArmed, p.Mode)
	code, _ = askRecovery(t, f, "admin", http.MethodPost, "/disarm", `{"reason": "CHG-2"}`, &p)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, recovery.Default().Digest(), p.Digest)

	f.policy.Body = json.RawMessage(`{"quantum": 1}`) // of a newer version
	code, failure := askRecovery(t, f, "admin", http.MethodPost, "/arm", `{"reason": "CHG-3"}`, nil)
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, "policy_unreadable", failure.Error.Reason)
	require.Equal(t, 2, f.changes)

	code, _ = askRecovery(t, f, "admin", http.MethodPost, "/breaker/close", `{"reason": "switch replaced"}`, nil)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "switch replaced", f.closed)
}

// TestRecoveryReads: the status has the limits of the policy; the list takes its filters.
func TestRecoveryReads(t *testing.T) {
	t.Parallel()
	f := newPolicy(t)
	var st record.Status
	code, _ := askRecovery(t, f, "viewer", http.MethodGet, "", "", &st)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, []int{5, 1}, []int{*st.Budgets[0].Limit, *st.Budgets[1].Limit})
	require.Empty(t, st.Policy.Body)
	code, _ = askRecovery(t, f, "viewer", http.MethodGet, "/decisions?since=24h&limit=7", "", nil)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 7, f.query.Limit)
	require.WithinDuration(t, time.Now().Add(-24*time.Hour), f.query.Since, time.Minute)
	code, _ = askRecovery(t, f, "viewer", http.MethodGet, "/decisions?before=24h", "", nil)
	require.Equal(t, http.StatusBadRequest, code)
}

// TestRecoveryRoles: every subject reads, and only an admin changes.
func TestRecoveryRoles(t *testing.T) {
	t.Parallel()
	f := newPolicy(t)
	for _, path := range []string{"/policy", "/arm", "/disarm", "/breaker/close"} {
		code, _ := askRecovery(t, f, "operator", http.MethodPost, path, `{"reason": "r"}`, nil)
		require.Equal(t, http.StatusForbidden, code, path)
	}
	require.Zero(t, f.changes)
	require.Empty(t, f.closed)
}

// TestStatusOfUnreadablePolicy: the status says why nothing is repaired, and has no limits that no one can know.
func TestStatusOfUnreadablePolicy(t *testing.T) {
	t.Parallel()
	f := newPolicy(t)
	f.policy.Version, f.policy.Body = 7, []byte(`{"mode": "armed", "future": 1}`)
	var st record.Status
	code, failure := askRecovery(t, f, "viewer", http.MethodGet, "", "", &st)
	require.Equal(t, http.StatusOK, code, failure.Error.Message)
	require.Contains(t, st.PolicyFault, "version 7 of the recovery policy cannot be read")
	require.EqualValues(t, 7, st.Policy.Version)
	require.Len(t, st.Budgets, 2)
	require.Nil(t, st.Budgets[0].Limit)
}
