package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reply is a response of the admin API.
type reply struct {
	status   int
	location string
	body     []byte
}

// adminHTTP sends a plain request to the admin API, without the CLI.
func adminHTTP(t *testing.T, method, path, body string, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, shared.Getenv("GPUAAS_API_URL")+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+shared.Getenv("GPUAAS_API_TOKEN"))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return reply{res.StatusCode, res.Header.Get("Location"), text}
}

// into requires the status and reads the body.
func (r reply) into(t *testing.T, status int, v any) {
	t.Helper()
	require.Equal(t, status, r.status, string(r.body))
	require.NoError(t, json.Unmarshal(r.body, v), string(r.body))
}

// refusal requires the status and returns the error.
func (r reply) refusal(t *testing.T, status int) schema.ErrorDetail {
	t.Helper()
	var b schema.ErrorBody
	r.into(t, status, &b)
	return b.Error
}

// blockedDrain is a drain of a node whose workload ignores SIGTERM.
type blockedDrain struct {
	id       string // of the node
	location string // of the operation
}

// blockDrain starts a drain over HTTP that parks after two seconds.
func blockDrain(t *testing.T, nodeHost, id string) blockedDrain {
	t.Helper()
	startWorkload(t, nodeHost, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	r := adminHTTP(t, http.MethodPost, "/api/v1/admin/nodes/"+nodeHost+"/drain", `{"options":{"drain_timeout_seconds":2},"reason":"RMA-4411"}`)
	var started wire.LifecycleResponse
	r.into(t, http.StatusAccepted, &started)
	require.Equal(t, "/api/v1/admin/operations/"+started.Operation.OperationID, r.location)
	return blockedDrain{id, r.location}
}

func (d blockedDrain) read(t *testing.T) lifecycle.Operation {
	t.Helper()
	var v wire.OperationView
	adminHTTP(t, http.MethodGet, d.location, "").into(t, http.StatusOK, &v)
	return v.Operation
}

// parked waits until the operation has parked after the given time.
func (d blockedDrain) parked(t *testing.T, after time.Time) (op lifecycle.Operation) {
	t.Helper()
	eventually(t, "the drain is parked", func() bool {
		op = d.read(t)
		return op.Stuck != nil && op.Stuck.Since.After(after)
	})
	return op
}

func (d blockedDrain) ends(t *testing.T, status lifecycle.OperationState) (op lifecycle.Operation) {
	t.Helper()
	eventually(t, "the drain is "+string(status), func() bool {
		op = d.read(t)
		return op.Status.Ended()
	})
	require.Equal(t, status, op.Status, op.Outcome)
	return op
}

// decide sends a decision that is addressed to the park.
func (d blockedDrain) decide(t *testing.T, decision lifecycle.Decision, at *lifecycle.Stuck, headers ...string) reply {
	t.Helper()
	body, err := json.Marshal(wire.ResolveOperation{Reason: "TCK-9 " + string(decision), Phase: at.Phase, StuckSince: &at.Since})
	require.NoError(t, err)
	return adminHTTP(t, http.MethodPost, d.location+"/"+string(decision), string(body), headers...)
}

// TestDecisionsByHTTP sends every decision about a parked operation by plain HTTP to a
// real workflow.
func TestDecisionsByHTTP(t *testing.T) {
	nodeHost, id := enrolled(t, "http")
	d := blockDrain(t, nodeHost, id)
	first := d.parked(t, time.Time{})
	var list wire.StuckList
	adminHTTP(t, http.MethodGet, "/api/v1/admin/stuck?node="+nodeHost, "").into(t, http.StatusOK, &list)
	require.Len(t, list.Stuck, 1)
	require.Equal(t, "drain_blocked", list.Stuck[0].Stuck.Reason)
	var options []lifecycle.Decision
	for _, o := range list.Stuck[0].Stuck.Options {
		options = append(options, o.Decision)
	}
	require.ElementsMatch(t, lifecycle.Decisions(), options)

	for _, decision := range options {
		path := d.location + "/" + string(decision)
		for _, body := range []string{"", "{}", `{"reason":" "}`, `{"reason":"TEXT"}`} {
			assert.Equal(t, "bad_reason", adminHTTP(t, http.MethodPost, path, body).refusal(t, http.StatusBadRequest).Reason, "%s %s", decision, body)
		}
		for _, body := range []string{`{"reason":"x","phase":"cordon"}`, `{"reason":"x","stuck_since":"2026-01-01T00:00:00Z"}`} {
			assert.Equal(t, schema.KindDecisionOutdated, adminHTTP(t, http.MethodPost, path, body).refusal(t, http.StatusConflict).Code, "%s %s", decision, body)
		}
	}
	require.Equal(t, first.Stuck, d.read(t).Stuck, "no refused request changed anything")

	require.Equal(t, http.StatusOK, d.decide(t, lifecycle.DecisionExtend, first.Stuck).status)
	second := d.parked(t, first.Stuck.Since)
	require.Equal(t, http.StatusOK, d.decide(t, lifecycle.DecisionRetry, second.Stuck, wire.HeaderIdempotencyKey, "once").status)
	// The response is lost, and the client repeats the request.
	require.Equal(t, http.StatusOK, d.decide(t, lifecycle.DecisionRetry, second.Stuck, wire.HeaderIdempotencyKey, "once").status)
	third := d.parked(t, second.Stuck.Since)
	require.Equal(t, 3, third.Phases[1].Attempt, "one attempt more for the extension and one for the retry")
	require.Equal(t, schema.KindDecisionOutdated, d.decide(t, lifecycle.DecisionSkip, second.Stuck).refusal(t, http.StatusConflict).Code)
	require.Equal(t, http.StatusOK, d.decide(t, lifecycle.DecisionCancel, third.Stuck).status)
	d.ends(t, lifecycle.OperationCanceled)
	requireDecisions(t, id, "extend", "retry", "cancel")
	require.Equal(t, schema.KindDecisionOutdated, d.decide(t, lifecycle.DecisionRetry, third.Stuck).refusal(t, http.StatusConflict).Code)

	for _, decision := range []lifecycle.Decision{lifecycle.DecisionSkip, lifecycle.DecisionForce} {
		d := blockDrain(t, nodeHost, id)
		require.Equal(t, http.StatusOK, d.decide(t, decision, d.parked(t, time.Time{}).Stuck).status)
		d.ends(t, lifecycle.OperationCompleted)
		act(t, "node", "reactivate", nodeHost)
	}
	requireDecisions(t, id, "extend", "retry", "cancel", "skip", "force")
}

// requireDecisions compares the decisions in the node's audit stream, each with the
// subject and the interface.
func requireDecisions(t *testing.T, nodeID string, want ...string) {
	t.Helper()
	var page wire.AuditPage
	adminHTTP(t, http.MethodGet, "/api/v1/admin/audit?node="+nodeID+"&action="+audit.Decision, "").into(t, http.StatusOK, &page)
	var got []string
	for _, e := range page.Events {
		got = append([]string{e.Detail["decision"]}, got...)
		assert.Equal(t, "TCK-9 "+e.Detail["decision"], e.Reason)
		assert.Equal(t, "admin-token", e.Actor)
		assert.Equal(t, "api", e.Via)
	}
	require.Equal(t, want, got)
}
