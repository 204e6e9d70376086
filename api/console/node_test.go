package console_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const nodePath = "/nodes/" + nodeID

// busy is an active node with two workloads.
func busy() wire.NodeView {
	return wire.NodeView{ID: nodeID, Host: "gpu-17", SKU: "h100", GPUsTotal: 8, RegionCode: "fra1", OnboardingMode: inventory.ProviderManual,
		LifecycleClass: inventory.ClassPersistent, Labels: map[string]string{"rack": "r7"}, State: lifecycle.NodeActive, StateSince: readAt().Add(-48 * time.Hour),
		Incarnation: 1, LastHeartbeatAt: new(readAt().Add(-20 * time.Second)), AgentVersion: "v0.3.0", UptimeSeconds: 7200, Driver: "docker",
		Workloads:  []task.Workload{{Name: "train-1", Kind: "docker"}, {Name: "train-2", Kind: "docker", Warning: "it writes a checkpoint"}},
		Identity:   &trust.CertFacts{Serial: "0a1b", Issuer: "gpuaas node CA", NotAfter: readAt().Add(20 * 24 * time.Hour)},
		Conditions: []signal.Condition{{Condition: health.Condition{Checker: "gpu_xid", Component: "gpu-0", Status: health.Healthy, Reason: "NoXID", Since: readAt().Add(-time.Hour)}}},
		CreatedAt:  readAt().Add(-72 * time.Hour)}
}

// node answers what the page of a node reads.
func (b *backend) node(n wire.NodeView) {
	b.answer("GET "+nodePath, n)
	b.answer("GET /nodes", wire.NodeList{Nodes: []wire.NodeView{n}, NextPageToken: "token-2"})
	b.answer("GET /operations", wire.OperationList{Operations: []wire.OperationSummary{parked().OperationSummary}})
	b.answer("GET /tasks", wire.TaskList{Tasks: []wire.TaskView{{TaskID: "t-1", Type: task.Type("workload.drain"), Status: task.Running, Attempts: 1, CreatedAt: readAt().Add(-time.Hour), Progress: "2 left"}}})
	b.answer("GET /audit", wire.AuditPage{Events: []audit.Row{{Event: audit.Event{At: readAt().Add(-time.Hour), Action: "nodes.drain", Result: audit.Accepted, Actor: "ops-1", Via: "console", Reason: "RMA-4411"}}}})
	b.answer("GET "+nodePath+"/signals", signal.List{Signals: []health.Signal{{At: readAt().Add(-time.Hour), Type: "health.gpu_xid", Status: health.Healthy, Detail: "cleared"}}})
	b.answer("GET /instances", instance.List{})
	b.answer("GET /providers", machine.Providers{})
	b.answer("GET /durations", insight.DurationList{Durations: []insight.Duration{{Phase: "", Samples: 4, MedianSeconds: 60}}})
}

func TestNodePage(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	golden(t, "node", s.login(trust.RoleOperator).get("/console"+nodePath))
}

func TestNodeList(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	w := s.login(trust.RoleViewer).get("/console/nodes?state=active&sku=h100&unknown=1")
	golden(t, "nodes", w)
	assert.Contains(t, s.backend.sent(http.MethodGet)[0].target, "/nodes?limit=100&sku=h100&state=active")
	assert.Contains(t, w.Body.String(), "page_token=token-2")
}

func TestOperationList(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	golden(t, "operations", s.login(trust.RoleViewer).get("/console/operations?status=parked"))
}

// The form of an action shows its plan before anything happens.
func TestActionForm(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	golden(t, "drain", s.login(trust.RoleOperator).get("/console"+nodePath+"/drain"))
	assert.Empty(t, s.backend.sent(http.MethodPost))
}

func TestAction(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	s.backend.answer("POST "+nodePath+"/drain", wire.LifecycleResponse{Operation: lifecycle.Operation{OperationID: operationID}})
	form := url.Values{"reason": {"RMA-4411"}, "key": {"key-2"}, "minutes": {"30"}, "typed": {"gpu-17"}}
	w := s.login(trust.RoleOperator).do(http.MethodPost, "/console"+nodePath+"/drain", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	assert.Equal(t, "/console"+operationPath, w.Header().Get("Location"))
	sent := s.backend.sent(http.MethodPost)
	require.Len(t, sent, 1)
	var body wire.LifecycleRequest
	require.NoError(t, json.Unmarshal([]byte(sent[0].body), &body))
	assert.Equal(t, wire.LifecycleRequest{Reason: "RMA-4411", Options: lifecycle.Options{DrainTimeoutSeconds: 1800}}, body)
	form.Set("minutes", "0")
	assert.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/console"+nodePath+"/drain", form).Code)
}

// A form that was not accepted keeps its options: a drain must not replace the cordon that was chosen.
func TestRefusedFormKeepsItsOptions(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	s.login(trust.RoleOperator)
	for name, change := range map[string]url.Values{"other host": {"typed": {"gpu-71"}}, "no reason": {"reason": {" "}}, "no time": {"minutes": {"0"}}} {
		form := url.Values{"reason": {"RMA-4411"}, "key": {"key-2"}, "minutes": {"45"}, "cordon_only": {"true"}, "typed": {"gpu-17"}}
		maps.Copy(form, change)
		w := s.do(http.MethodPost, "/console"+nodePath+"/drain", form)
		require.Equal(t, http.StatusBadRequest, w.Code, name)
		text := w.Body.String()
		assert.Contains(t, text, `name="cordon_only" value="true" checked`, name)
		assert.Contains(t, text, `type="number" value="`+form.Get("minutes")+`"`, name)
		assert.Contains(t, text, `name="reason" maxlength="500" value="`+strings.TrimSpace(form.Get("reason"))+`"`, name)
		assert.Contains(t, text, `id="refused"`, name)
	}
	assert.Empty(t, s.backend.sent(http.MethodPost))
}

// A refusal of the admin API is a page with its code, the next step and the correlation ID.
func TestRefusedAction(t *testing.T) {
	s := newSite(t)
	s.backend.node(busy())
	s.backend.answer("POST "+nodePath+"/quarantine", schema.NewError(schema.KindOperationInProgress, "a drain is in progress").WithNext("gpuaas op show gpu-17"))
	w := s.login(trust.RoleOperator).do(http.MethodPost, "/console"+nodePath+"/quarantine", url.Values{"reason": {"r"}, "key": {"k"}})
	assert.Equal(t, http.StatusConflict, w.Code)
	for _, text := range []string{"a drain is in progress", "gpuaas op show gpu-17", w.Header().Get("X-Correlation-Id")} {
		assert.Contains(t, w.Body.String(), text)
	}
}

// hostile is a text that must not become markup, and that is longer than a page shows.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>` + "\x1b[2J\u202e\x00"

// plant replaces each text in a value.
func plant(v any) any {
	switch x := v.(type) {
	case string:
		return hostile + strings.Repeat("A", 10000)
	case []any:
		for i := range x {
			x[i] = plant(x[i])
		}
	case map[string]any:
		for k := range x {
			if k != "id" && k != "node_id" && k != "operation_id" && !strings.HasSuffix(k, "_at") && k != "since" && k != "at" && k != "state_since" && k != "not_after" && k != "not_before" {
				x[k] = plant(x[k])
			}
		}
	}
	return v
}

// No text that a node or an operator wrote becomes markup, on any page that shows it.
func TestHostileText(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	s.backend.node(busy())
	s.backend.answer("GET "+operationPath, operation())
	s.backend.mu.Lock()
	for request, v := range s.backend.responses {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		var generic any
		require.NoError(t, json.Unmarshal(raw, &generic))
		s.backend.responses[request] = plant(generic)
	}
	s.backend.mu.Unlock()
	s.login(trust.RoleAdmin)
	for _, page := range []string{"/console/", "/console/nodes", "/console" + nodePath, "/console/operations", "/console" + operationPath,
		"/console/nodes?host=" + url.QueryEscape(hostile), "/console" + nodePath + "/drain"} {
		w := s.get(page)
		text := w.Body.String()
		assert.Equal(t, http.StatusOK, w.Code, page)
		for _, markup := range []string{"<script>alert", "<img", "\x1b", "\u202e"} {
			assert.NotContains(t, text, markup, page)
		}
		assert.Less(t, len(text), 200<<10, page)
	}
	assert.Contains(t, s.get("/console"+nodePath).Body.String(), "&lt;script&gt;", "the text is shown as text")
}
