package console_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The audit page sends its filters to the admin API, marks forced and skipped phases, and links to
// older events with the same filters.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	event := audit.Event{Stream: nodeID, Seq: 7, At: readAt(), Actor: "ops-1", Via: "console", Action: audit.Decision, Target: operationID, OperationID: operationID,
		Result: audit.Accepted, Reason: "tenant agreed", CorrelationID: "c-9", Detail: map[string]string{"decision": "force", "phase": "drain"}}
	retried := event
	retried.Detail = map[string]string{"decision": "retry", "phase": "drain"}
	s.backend.answer("GET /audit", wire.AuditPage{Events: []audit.Row{{Event: event, Host: "gpu-17"}, {Event: retried, Host: "gpu-17"}}, NextPageToken: "next"})
	w := s.get("/console/audit?node=gpu-17&result=accepted&since=24h&evil=1&actor=")
	require.Equal(t, http.StatusOK, w.Code)
	golden(t, "audit", w)
	sent := s.backend.sent(http.MethodGet)
	require.Equal(t, "/audit?limit=100&node=gpu-17&result=accepted&since=24h", sent[len(sent)-1].target)
	require.Contains(t, w.Body.String(), `href="/console/audit?node=gpu-17&amp;page_token=next&amp;result=accepted&amp;since=24h"`)
	s.get("/console/audit?node=gpu-17&page_token=next")
	sent = s.backend.sent(http.MethodGet)
	require.Equal(t, "/audit?limit=100&node=gpu-17&page_token=next", sent[len(sent)-1].target)
}

// rotating is a rotation that waits for the approval and for a node.
func rotating() rotation.View {
	r := rotation.Rotation{RotationID: operationID, Kind: rotation.TaskKey, Phase: rotation.Grace, OldKey: "task-test.v1", NewKey: "task-test.v2", SetVersion: 4,
		PhaseSince: readAt().Add(-time.Hour), GraceSeconds: 3600, Actor: "ops-1", Reason: "quarterly rotation", StartedAt: readAt().Add(-2 * time.Hour), CheckedAt: readAt()}
	heartbeat := readAt().Add(-26 * time.Hour)
	return rotation.Describe(r, rotation.Progress{Nodes: 12, Confirmed: 10, Waived: 1, OpenTasks: 3,
		Waiting: []rotation.Waiting{{NodeID: nodeID, Host: "gpu-17", State: "offline", SetVersion: 3, LastHeartbeatAt: &heartbeat}}}, readAt())
}

// The trust page shows the verifier set and the open rotation. An admin decides about what
// the page showed, and about nothing else.
func TestTrust(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.answer("GET /trust", rotation.Trust{Version: 4, Epoch: 1, Hash: "abcd", IssuedAt: readAt(), ExpiresAt: readAt().Add(time.Hour), SignedBy: "set-root-test.v1",
		Keys: []rotation.Key{{KeyID: "task-test.v1", State: trust.KeyActive, SHA256: "1234"}}, Nodes: 12, Confirmed: 11})
	v := rotating()
	s.backend.answer("GET /trust/rotation", v)
	s.backend.answer("POST /trust/rotation/approve", v)
	golden(t, "trust", s.login(trust.RoleAdmin).get("/console/trust"))
	page := s.get("/console/trust/rotation/approve?phase=grace&rotation=" + operationID)
	require.Equal(t, http.StatusOK, page.Code)
	require.Contains(t, page.Body.String(), "This cannot be undone.")
	form := hidden(page.Body.String())
	form.Set("reason", " CHG-204 ")
	w := s.do(http.MethodPost, "/console/trust/rotation/approve", form)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "Type task-test.v1 to confirm.")
	form.Set("typed", "task-test.v1")
	w = s.do(http.MethodPost, "/console/trust/rotation/approve", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 1)
	require.JSONEq(t, `{"reason":"CHG-204"}`, sent[0].body)
	require.Equal(t, form.Get("key"), sent[0].key)

	form.Set("phase", "activate")
	require.Equal(t, http.StatusConflict, s.do(http.MethodPost, "/console/trust/rotation/rollback", form).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/console/trust/rotation/..%2Fnodes", form).Code)
	require.Len(t, s.backend.sent(http.MethodPost), 1)

	s.login(trust.RoleOperator)
	require.NotContains(t, s.get("/console/trust").Body.String(), "/console/trust/rotation/")
	require.Contains(t, s.get("/console/trust/rotation/approve?phase=grace&rotation="+operationID).Body.String(), "it needs the role admin")
}

// Without a verifier set and a rotation, the trust page says so.
func TestTrustOfANewInstallation(t *testing.T) {
	t.Parallel()
	w := newSite(t).login(trust.RoleViewer).get("/console/trust")
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "There is no verifier set.")
	require.Contains(t, w.Body.String(), "There was no rotation yet.")
}

// The page about agents counts certificates by the time that is left, and versions, and names the
// nodes that differ.
func TestAgents(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	var nodes []wire.NodeView
	for i, left := range []time.Duration{-time.Hour, time.Hour, 20 * time.Hour, 3 * 24 * time.Hour, 20 * 24 * time.Hour, 20 * 24 * time.Hour} {
		nodes = append(nodes, wire.NodeView{ID: fmt.Sprintf("%s%d", nodeID[:35], i), Host: fmt.Sprint("gpu-", i), State: lifecycle.NodeActive, AgentVersion: "1.4.0",
			Identity: &trust.CertFacts{NotAfter: readAt().Add(left)}})
	}
	nodes[1].AgentVersion = "1.3.0"
	nodes = append(nodes, wire.NodeView{ID: nodeID, Host: "new-1", State: lifecycle.NodeRegistered})
	s.backend.answer("GET /nodes", wire.NodeList{Nodes: nodes})
	w := s.get("/console/agents")
	require.Equal(t, http.StatusOK, w.Code)
	golden(t, "agents", w)
}
