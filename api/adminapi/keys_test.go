package adminapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// start starts an action with the idempotency key k and returns its operation.
func (d *backend) start(t *testing.T, action, body string) lifecycle.Operation {
	t.Helper()
	w := d.post(t, action, body, wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	var r wire.LifecycleResponse
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &r))
	require.Equal(t, "/api/v1/admin/operations/"+r.Operation.OperationID, w.Header().Get("Location"))
	return r.Operation
}

// A repeated request returns its own operation as it is now, even after a later
// operation of the node.
func TestStartRepeated(t *testing.T) {
	const body = `{"reason":"RMA-4411","options":{"drain_timeout_seconds":60}}`
	d := newBackend()
	first := d.start(t, "drain", body)
	assert.Equal(t, lifecycle.OperationAccepted, first.Status)
	d.start(t, "uncordon", "")
	for _, now := range []lifecycle.OperationState{lifecycle.OperationParked, lifecycle.OperationCompleted} {
		stored := d.started[first.OperationID]
		stored.Status = now
		d.started[first.OperationID] = stored
		again := d.start(t, "drain", body)
		assert.Equal(t, first.OperationID, again.OperationID)
		assert.Equal(t, now, again.Status)
	}
	assert.Equal(t, []string{"submit", "submit"}, d.steps)
}

// A key that started an operation starts none with other content.
func TestStartWithOtherContent(t *testing.T) {
	d := newBackend()
	first := d.start(t, "drain", `{"reason":"RMA-1"}`)
	for _, body := range []string{"", `{"reason":"RMA-2"}`, `{"reason":"RMA-1","options":{"cordon_only":true}}`} {
		w := d.post(t, "drain", body, wire.HeaderIdempotencyKey, "k")
		assert.Equal(t, http.StatusConflict, w.Code, body)
		e := refusal(t, w)
		assert.Equal(t, schema.KindKeyInUse, e.Code, body)
		assert.Contains(t, e.Message, first.OperationID)
		assert.Contains(t, e.Next, wire.HeaderIdempotencyKey)
	}
	assert.Equal(t, []string{"submit"}, d.steps)
}

// The release is that of the architecture that the node reported.
func TestUpgradeOfAnArchitecture(t *testing.T) {
	d := newBackend()
	d.node.Facts = &inventory.Facts{Arch: trust.ArchARM64}
	d.start(t, "upgrade-agent", `{"options":{"agent_version":"v2.0.0"}}`)
	assert.Equal(t, "v2.0.0 arm64", d.submitted.Options.Release)
}

// A repeated upgrade returns its operation, whatever became of the release: its document may have
// been signed again or removed. Another version is another request.
func TestUpgradeRepeated(t *testing.T) {
	const body = `{"options":{"agent_version":"v2.0.0"}}`
	d := newBackend()
	d.signed = " signed once"
	first := d.start(t, "upgrade-agent", body)
	assert.Equal(t, "v2.0.0 signed once", d.submitted.Options.Release)
	d.signed = " signed twice"
	assert.Equal(t, first.OperationID, d.start(t, "upgrade-agent", body).OperationID)
	d.releaseErr = schema.NewError(schema.KindServiceUnavailable, "the folder cannot be read").WithReason("no_release")
	assert.Equal(t, first.OperationID, d.start(t, "upgrade-agent", body).OperationID)
	assert.Equal(t, []string{"submit"}, d.steps)

	w := d.post(t, "upgrade-agent", `{"options":{"agent_version":"v3.0.0"}}`, wire.HeaderIdempotencyKey, "k")
	assert.Equal(t, schema.KindKeyInUse, refusal(t, w).Code)
	e := refusal(t, d.post(t, "upgrade-agent", body, wire.HeaderIdempotencyKey, "another"))
	assert.Equal(t, "no_release", e.Reason)
	assert.Equal(t, "the folder cannot be read", e.Message, "nothing was accepted")
	assert.Equal(t, []string{"submit"}, d.steps)
}

// The key of another action, and that of a bootstrap script, is another key.
func TestKeyBelongsToItsEndpoint(t *testing.T) {
	d := newBackend()
	d.node.State = lifecycle.NodeRegistered
	seen := map[string]bool{d.start(t, "drain", "").OperationID: true, d.start(t, "enroll", "").OperationID: true, d.start(t, "retire", "").OperationID: true}
	assert.Len(t, seen, 3)
	d.open, d.pack = nil, &trust.AgentPackage{OCIRef: "https://api.internal/x", PullDeliveryMode: adminapi.DeliverArchive}
	w := d.post(t, "bootstrap-script", "", wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.False(t, seen[d.submitted.OperationID])
}

// A script of a node whose enrollment is abandoned belongs to a new enrollment: nothing
// continues the abandoned one.
func TestScriptOfAbandonedEnrollment(t *testing.T) {
	started, attached := []string{"trust", "submit", "issue"}, []string{"trust", "issue"}
	for name, c := range map[string]struct {
		status lifecycle.OperationState
		end    lifecycle.RunEnd
		steps  []string
	}{
		"abandoned":              {lifecycle.OperationAbandoned, lifecycle.RunTerminated, started},
		"terminated, not marked": {lifecycle.OperationRunning, lifecycle.RunTerminated, started},
		"running":                {lifecycle.OperationRunning, "", attached},
		"perhaps lost":           {lifecycle.OperationRunning, lifecycle.RunLost, attached},
	} {
		t.Run(name, func(t *testing.T) {
			d := newBackend()
			d.node.State, d.pack = lifecycle.NodeEnrolling, &trust.AgentPackage{OCIRef: "https://api.internal/x", PullDeliveryMode: adminapi.DeliverArchive}
			d.open = []wire.OperationSummary{{OperationID: schema.NewID(), Action: lifecycle.ActionEnroll, Status: c.status}}
			d.runEnd = c.end
			w := d.post(t, "bootstrap-script", "")
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			assert.Equal(t, c.steps, d.steps)
		})
	}
}

// Of two requests with one key at the same time, the later one returns the operation
// of the other.
func TestStartAtTheSameTime(t *testing.T) {
	d := newBackend()
	d.meantime = true
	d.start(t, "drain", "")
}

// An enrollment that has ended issues no further bundle.
func TestStartRepeatedAfterTheEnrollment(t *testing.T) {
	d := newBackend()
	first := d.start(t, "enroll", "")
	first.Status = lifecycle.OperationCompleted
	d.started[first.OperationID] = first
	d.steps = nil
	assert.Equal(t, first, d.start(t, "enroll", ""))
	assert.Equal(t, []string{"trust"}, d.steps)
}

// After an error that leaves open whether the operation runs, the response says so
// and how to find out.
func TestStartUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		fail    func(*backend)
		headers []string
		says    string
		next    string
		reason  string
	}{
		"without a key": {func(d *backend) {
			d.submitErr = schema.NewError(schema.KindServiceUnavailable, "Temporal does not answer")
		}, nil,
			"the operation may have been accepted", "gpuaas op list --node gpu-1", ""},
		"with a key": {func(d *backend) {
			d.submitErr = schema.NewError(schema.KindServiceUnavailable, "Temporal does not answer")
		}, []string{wire.HeaderIdempotencyKey, "k"},
			"the operation may have been accepted", "repeat the request with the same Idempotency-Key, or run: gpuaas op list --node gpu-1", ""},
		"no bundle": {func(d *backend) {
			d.issueErr = schema.NewError(schema.KindServiceUnavailable, "the database rejects the role").WithReason("database_login")
		}, nil,
			"was accepted", "gpuaas op list --node gpu-1", "response_lost"},
		"no worker": {func(d *backend) {
			d.submitErr = schema.NewError(schema.KindServiceUnavailable, "it runs as soon as a worker is up").WithReason("no_worker").WithNext("gpuaas op watch gpu-1")
		}, nil, "it runs as soon as a worker is up", "gpuaas op watch gpu-1", "no_worker"},
		"rejected": {func(d *backend) {
			d.submitErr = schema.NewError(schema.KindServiceUnavailable, "Temporal has no namespace").WithReason("namespace_missing").WithNext("gpuaas admin setup")
		}, nil, "Temporal has no namespace", "gpuaas admin setup", "namespace_missing"},
	} {
		d := newBackend()
		c.fail(d)
		w := d.post(t, "enroll", "", c.headers...)
		assert.Equal(t, http.StatusServiceUnavailable, w.Code, name)
		e := refusal(t, w)
		assert.Contains(t, e.Message, c.says, name)
		assert.Equal(t, c.next, e.Next, name)
		assert.Equal(t, c.reason, e.Reason, name)
	}
}

// as sends a request with another token.
func (d *backend) as(t *testing.T, token, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	return d.request(t, method, path, body, "Authorization", "Bearer "+token, wire.HeaderIdempotencyKey, "k")
}

// Two subjects that use the same key start two operations.
func TestKeyBelongsToItsSubject(t *testing.T) {
	d := newBackend()
	d.tokens = tokensFile(t, tokenLine("olga", "operator"))
	first := d.start(t, "drain", "")
	w := d.as(t, "token-of-olga", http.MethodPost, "/nodes/gpu-1/drain", "")
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	assert.NotEqual(t, first.OperationID, d.submitted.OperationID)
	assert.Equal(t, "olga", d.submitted.Actor)
}
