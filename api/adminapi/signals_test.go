package adminapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func (d *backend) ListSignals(_ context.Context, q adminapi.SignalQuery) ([]health.Signal, []string, error) {
	d.asked = q
	return []health.Signal{{SignalID: d.node.ID, Type: health.SignalSilent, NodeID: d.node.ID, Host: "gpu-1", At: time.Unix(0, 0).UTC()}}, d.next, nil
}

func (d *backend) ReportHealth(_ context.Context, n wire.NodeView, r health.Report) (bool, error) {
	d.asked = r
	return n.ID == d.node.ID && len(r.Conditions) > 0, nil
}

func TestSignals(t *testing.T) {
	d := newBackend()
	d.next = []string{"2026-03-01T12:00:00Z", d.node.ID}
	w := d.request(t, http.MethodGet, "/signals?node=gpu-1&type=health.*,instance.silent&status=unhealthy&sku=h100&region=r1&limit=1&selector=rack%3Dr7&fields=type,host", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Contains(t, w.Body.String(), `"signals":[{"host":"gpu-1","type":"instance.silent"}]`)
	assert.Contains(t, w.Body.String(), `"next_page_token"`)
	selector, err := adminapi.ParseSelector("rack=r7")
	require.NoError(t, err)
	assert.Equal(t, adminapi.SignalQuery{Page: adminapi.Page{Limit: 1}, NodeID: d.node.ID, Types: []health.SignalType{"health.*", health.SignalSilent},
		Statuses: []health.Status{health.Unhealthy}, SKUs: []string{"h100"}, Regions: []string{"r1"}, Selector: selector}, d.asked)

	w = d.request(t, http.MethodGet, "/nodes/gpu-1/signals?since=2026-03-01T12:00:00Z", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Equal(t, adminapi.SignalQuery{Page: adminapi.Page{Limit: wire.DefaultPage}, NodeID: d.node.ID, Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}, d.asked)
	for path, reason := range map[string]string{"/signals?status=ill": "bad_status", "/signals?type=a%25": "bad_type", "/signals?since=yesterday": "bad_since",
		"/signals?page_token=x": "bad_page_token", "/signals?fields=secret": "bad_fields", "/signals?open=true": "unknown_parameter",
		"/nodes/gpu-1/signals?node=gpu-2": "unknown_parameter", "/nodes/gpu-1/signals?sku=h100": "unknown_parameter"} {
		assert.Equal(t, reason, refusal(t, d.request(t, http.MethodGet, path, "")).Reason, path)
	}
	for _, path := range []string{"/signals?node=" + schema.NewID(), "/nodes/" + schema.NewID() + "/signals"} {
		assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, path, "").Code, path)
	}
}

// A report is checked before it is stored; the longest valid one fits.
func TestReportConditions(t *testing.T) {
	d := newBackend()
	put := func(r health.Report) (int, string) {
		text, err := json.Marshal(r)
		require.NoError(t, err)
		w := d.request(t, http.MethodPut, "/nodes/gpu-1/conditions", string(text))
		return w.Code, w.Body.String()
	}
	at := time.Now().UTC()
	ready := health.Condition{Checker: "node_ready", Status: health.Healthy, Reason: "KubeletReady", Since: at}
	code, body := put(health.Report{At: at, Conditions: []health.Condition{ready}})
	require.Equal(t, http.StatusOK, code, body)
	assert.JSONEq(t, `{"accepted":true}`, body)
	_, body = put(health.Report{At: at})
	assert.JSONEq(t, `{"accepted":false}`, body)
	long := health.Report{At: at}
	for i := range health.MaxConditions {
		c := ready
		c.Component, c.Reason, c.Detail = fmt.Sprintf("%03d", i)+strings.Repeat("<", health.MaxComponent-3), strings.Repeat("R", health.MaxReason), strings.Repeat("<", health.MaxDetail)
		long.Conditions = append(long.Conditions, c)
	}
	code, body = put(long)
	require.Equal(t, http.StatusOK, code, body)
	d.asked = nil
	long.Conditions = append(long.Conditions, ready)
	twice := health.Report{At: at, Conditions: []health.Condition{ready, ready}}
	for _, bad := range []health.Report{long, twice, {Conditions: []health.Condition{ready}}} {
		code, body = put(bad)
		assert.Equal(t, http.StatusBadRequest, code)
		assert.Contains(t, body, health.ReasonBadHealth)
	}
	for _, text := range []string{"", "{", `{"at":"2026-03-01T12:00:00Z","conditions":[],"more":1}`} {
		assert.Equal(t, http.StatusBadRequest, d.request(t, http.MethodPut, "/nodes/gpu-1/conditions", text).Code, text)
	}
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPut, "/nodes/"+schema.NewID()+"/conditions", `{"at":"2026-03-01T12:00:00Z","conditions":[]}`).Code)
	d.node.State = lifecycle.NodeRemoved
	code, _ = put(health.Report{At: at, Conditions: []health.Condition{ready}})
	assert.Equal(t, http.StatusNotFound, code)
	assert.Nil(t, d.asked)
}
