package adminapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// rotationRows has one rotation, and drives none.
type rotationRows struct {
	open    *rotation.Rotation
	decided []rotation.Decided
	driven  int
	driveTo error
	by      audit.Subject
}

func (f *rotationRows) NewestSet(context.Context) (trust.StoredSet, error) {
	return trust.StoredSet{Version: 4}, nil
}

func (f *rotationRows) NewestRotation(context.Context) (rotation.Rotation, time.Time, error) {
	if f.open == nil {
		return rotation.Rotation{}, time.Time{}, schema.NewError(schema.KindNotFound, "there is no rotation")
	}
	return *f.open, f.open.PhaseSince, nil
}

func (f *rotationRows) RotationProgress(context.Context, rotation.Rotation) (rotation.Progress, error) {
	return rotation.Progress{Nodes: 2, Confirmed: 1, Waiting: []rotation.Waiting{{Host: "gpu-2"}}}, nil
}

func (f *rotationRows) BeginRotation(_ context.Context, r rotation.Rotation, by audit.Subject) (rotation.Rotation, error) {
	if f.open != nil && f.open.Kind == rotation.RevokeKey && f.open.OldKey == r.OldKey {
		return *f.open, nil
	}
	if f.open != nil {
		return r, schema.NewError(schema.KindOperationInProgress, "a rotation is open").WithReason("rotation_open")
	}
	f.open, f.by = &r, by
	return r, nil
}

func (f *rotationRows) DecideRotation(_ context.Context, d rotation.Decided, _ audit.Subject) (rotation.Rotation, error) {
	f.decided = append(f.decided, d)
	r, err := f.open.Decide(d.Decision, time.Now())
	if err == nil {
		f.open = &r
	}
	return r, err
}

func (f *rotationRows) Drive(context.Context, rotation.Rotation) error {
	f.driven++
	return f.driveTo
}

// answered is an answer of the API about a rotation.
type answered struct {
	code int
	view rotation.View
	raw  []byte
	err  schema.ErrorBody
}

func askRotation(t *testing.T, f *rotationRows, method, path, body string) (a answered) {
	t.Helper()
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", "")
	require.NoError(t, err)
	h := adminapi.New(adminapi.Config{Auth: tokens, Rotations: f, RotationDriver: f, Lifecycle: newBackend(), Log: slog.New(slog.DiscardHandler),
		Ready: func() error { return nil }}).Handler()
	r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/admin/trust/rotation"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	a.code, a.raw = w.Code, w.Body.Bytes()
	if w.Code < http.StatusBadRequest {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a.view), w.Body.String())
	} else {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a.err), w.Body.String())
	}
	return a
}

// TestRepeatedRevocation: a request whose response was lost may be repeated, although the newest
// set has revoked the key.
func TestRepeatedRevocation(t *testing.T) {
	t.Parallel()
	open := rotation.Begin(rotation.RevokeKey, "task-dev.v1", 0)
	f := &rotationRows{open: &open}
	revoke := func(key string) answered {
		return askRotation(t, f, http.MethodPost, "", `{"kind":"revoke-key","key":"`+key+`","reason":"stolen"}`)
	}
	a := revoke("task-dev.v1")
	require.Equal(t, http.StatusAccepted, a.code)
	require.Equal(t, open.RotationID, a.view.RotationID)
	require.GreaterOrEqual(t, revoke("task-dev.v2").code, http.StatusBadRequest)
}

// TestStartRotation: a dry run starts nothing, a start drives the workflow, and there is one
// rotation at a time. What is not a rotation is rejected with the field.
func TestStartRotation(t *testing.T) {
	t.Parallel()
	for _, k := range rotation.Kinds() {
		f := &rotationRows{}
		start := func(more string) answered {
			return askRotation(t, f, http.MethodPost, "", `{"kind":"`+string(k)+`","reason":"yearly"`+more+`}`)
		}
		a := start(`,"dry_run":true`)
		require.Equal(t, http.StatusOK, a.code)
		require.Nil(t, f.open)
		require.Zero(t, f.driven)
		var plan map[string]any
		require.NoError(t, json.Unmarshal(a.raw, &plan))
		require.Len(t, plan["plan"], 4)
		require.ElementsMatch(t, []string{"dry_run", "kind", "grace_seconds", "plan", "progress"}, slices.Collect(maps.Keys(plan)))
		require.Equal(t, true, plan["dry_run"])
		a = start(`,"grace_seconds":60,"approved":true`)
		require.Equal(t, http.StatusAccepted, a.code)
		require.Equal(t, "ops", f.by.Actor)
		require.Equal(t, []any{k, rotation.Stage, int64(60), true, 1},
			[]any{f.open.Kind, f.open.Phase, f.open.GraceSeconds, f.open.Approved, f.driven})
		require.True(t, a.view.Reversible)
		a = start("")
		require.Equal(t, http.StatusConflict, a.code)
		require.Equal(t, "rotation_open", a.err.Error.Reason)
	}
	for body, reason := range map[string]string{
		`{"kind":"api-ca","reason":"x"}`:                          "bad_kind",
		`{"kind":"node-ca","reason":""}`:                          "bad_reason",
		`{"kind":"node-ca","reason":"x","key":"g1"}`:              "bad_key",
		`{"kind":"node-ca","reason":"x","grace_seconds":-1}`:      "bad_grace_seconds",
		`{"kind":"node-ca","reason":"x","grace_seconds":2592001}`: "bad_grace_seconds",
		`{"kind":"revoke-key","reason":"x"}`:                      "bad_key",
	} {
		f := &rotationRows{}
		a := askRotation(t, f, http.MethodPost, "", body)
		require.Equal(t, http.StatusBadRequest, a.code, body)
		require.Equal(t, reason, a.err.Error.Reason, body)
		require.Nil(t, f.open, body)
	}
}

// TestRotationWithoutWorkflow: a rotation that is on record although its workflow could not be
// started says so.
func TestRotationWithoutWorkflow(t *testing.T) {
	t.Parallel()
	f := &rotationRows{driveTo: schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")}
	a := askRotation(t, f, http.MethodPost, "", `{"kind":"node-ca","reason":"yearly"}`)
	require.Equal(t, http.StatusServiceUnavailable, a.code)
	require.NotNil(t, f.open)
	require.Contains(t, a.err.Error.Message, "the change is recorded")
	require.Equal(t, "gpuaas rotate resume --reason TEXT", a.err.Error.Next)
}

// TestDecideRotation: each decision reaches the record, and one that does not fit is rejected.
func TestDecideRotation(t *testing.T) {
	t.Parallel()
	f := &rotationRows{}
	require.Equal(t, http.StatusNotFound, askRotation(t, f, http.MethodGet, "", "").code)
	askRotation(t, f, http.MethodPost, "", `{"kind":"node-ca","reason":"yearly"}`)
	require.Equal(t, "gpu-2", askRotation(t, f, http.MethodGet, "", "").view.Progress.Waiting[0].Host)
	for _, d := range []rotation.Decision{rotation.Pause, rotation.Resume, rotation.Approve, rotation.Rollback} {
		a := askRotation(t, f, http.MethodPost, "/"+string(d), `{"reason":"CHG-1"}`)
		require.Equal(t, http.StatusOK, a.code, d)
		require.Equal(t, rotation.Decided{Decision: d, Reason: "CHG-1"}, f.decided[len(f.decided)-1])
	}
	require.Equal(t, rotation.Remove, f.open.Phase)
	require.Equal(t, 5, f.driven)
	require.Equal(t, http.StatusOK, askRotation(t, f, http.MethodPost, "/waive", `{"reason":"CHG-1","offline":true}`).code)
	for path, body := range map[string]string{"/waive": `{"reason":"x"}`, "/approve": `{"reason":"x","offline":true}`, "/pause": `{"reason":""}`} {
		require.Equal(t, http.StatusBadRequest, askRotation(t, f, http.MethodPost, path, body).code, path)
	}
	f.open.Phase = rotation.Retire
	require.Equal(t, "not_reversible", askRotation(t, f, http.MethodPost, "/rollback", `{"reason":"x"}`).err.Error.Reason)
}
