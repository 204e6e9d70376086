package server

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// A node's drain is started, read, listed and decided by plain HTTP requests, and
// the audit names the subject and the entry point.
func TestOperationByHTTP(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	m := r.enrolled()
	a := r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", `{"reason":"RMA-4411"}`, wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusAccepted, a.status, string(a.body))
	location, ok := strings.CutPrefix(a.header.Get("Location"), "/api/v1/admin")
	require.True(t, ok)
	var op wire.OperationView
	r.ask(http.MethodGet, location, nil).into(t, &op)
	assert.Equal(t, lifecycle.ActionDrain, op.Operation.Action)
	assert.Equal(t, m.id, op.Node.NodeID)

	stale := r.ask(http.MethodPost, location+"/retry", `{"phase":"drain","reason":"x"}`)
	assert.Equal(t, http.StatusConflict, stale.status)
	assert.Equal(t, schema.KindDecisionOutdated, stale.refusal(t).Code)
	assert.Equal(t, http.StatusNotFound, r.ask(http.MethodPost, "/operations/"+schema.NewID()+"/retry", `{"reason":"x"}`).status)

	c.park(op.Operation.OperationID)
	var stuck wire.StuckList
	r.ask(http.MethodGet, "/stuck?reason=drain_blocked", nil).into(t, &stuck)
	require.Len(t, stuck.Stuck, 1)
	assert.Equal(t, "wait longer", stuck.Stuck[0].Stuck.Options[0].Does)
	r.ask(http.MethodPost, location+"/extend", `{"phase":"drain","reason":"job ends at noon"}`).into(t, &op)
	assert.Equal(t, lifecycle.OperationParked, op.Operation.Status)

	r.finish(m.id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained})
	assert.Equal(t, schema.KindDecisionOutdated, r.ask(http.MethodPost, location+"/cancel", `{"reason":"x"}`).refusal(t).Code)
	var page wire.AuditPage
	r.ask(http.MethodGet, "/audit?action=nodes.drain&actor=admin-token&since=1h&limit=1", nil).into(t, &page)
	require.Len(t, page.Events, 1)
}

// park writes what a workflow does when a drain is blocked.
func (c *cluster) park(operationID string) {
	c.tb.Helper()
	stuck := lifecycle.Stuck{Phase: lifecycle.PhaseDrain, WaitingOn: lifecycle.AttentionOperator, Reason: "drain_blocked", Since: time.Now(),
		Options: []lifecycle.Option{{Decision: lifecycle.DecisionExtend, Does: "wait longer", Harm: lifecycle.HarmNone}}}
	text, err := json.Marshal(stuck)
	require.NoError(c.tb, err)
	c.exec("UPDATE operations SET status = 'parked', phase = 'drain', stuck = $1 WHERE operation_id = $2", string(text), operationID)
}

// Events come in order, and a client that connects again with the last id gets
// what it missed.
func TestEvents(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	events := r.events("/events?node="+m.id, "")
	r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", `{"reason":"RMA-4411"}`)
	seen := map[string]event{}
	for len(seen) < 2 {
		e := <-events
		seen[e.kind] = e
	}
	var op wire.OperationSummary
	require.NoError(t, json.Unmarshal([]byte(seen[wire.EventOperation].data), &op))
	assert.Equal(t, lifecycle.ActionDrain, op.Action)
	var row audit.Event
	require.NoError(t, json.Unmarshal([]byte(seen[wire.EventAudit].data), &row))
	assert.Equal(t, m.id, row.Stream)

	r.finish(m.id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained})
	again := r.events("/events?kind=operation&node="+m.id, seen[wire.EventOperation].id)
	for e := range again {
		assert.Equal(t, wire.EventOperation, e.kind)
		require.NoError(t, json.Unmarshal([]byte(e.data), &op))
		if op.Status == lifecycle.OperationCompleted {
			break
		}
	}
	assert.Equal(t, "bad_Last-Event-ID", r.ask(http.MethodGet, "/events", nil, "Last-Event-ID", "x").refusal(t).Reason)
	assert.Equal(t, http.StatusNotFound, r.ask(http.MethodGet, "/events?node=no-such-node", nil).status)
}

// A stream outlives an outage of the database: it reports the outage once, and the
// delayed events follow.
func TestEventsDuringAnOutage(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	m := r.enrolled()
	events := r.events("/events?kind=operation&node="+m.id, "")
	end := c.outage()
	e := receive(t, events)
	assert.Equal(t, event{kind: wire.EventOutage, data: e.data}, e)
	assert.Contains(t, e.data, `"code":"service_unavailable"`)
	end()
	require.Eventually(t, func() bool {
		return r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", nil, wire.HeaderIdempotencyKey, "k").status == http.StatusAccepted
	}, harness.Timeout, 50*time.Millisecond)
	var op wire.OperationSummary
	require.NoError(t, json.Unmarshal([]byte(receive(t, events).data), &op))
	assert.Equal(t, lifecycle.ActionDrain, op.Action)
	assert.Equal(t, 1, strings.Count(r.log.String(), "cannot read changes"))
}

// outage closes the connections to the database and rejects new ones until end is
// called.
func (c *cluster) outage() (end func()) {
	c.tb.Helper()
	cfg, err := pgx.ParseConfig(c.url)
	require.NoError(c.tb, err)
	name := pgx.Identifier{cfg.Database}.Sanitize()
	server := *c
	cfg.Database = "postgres"
	server.url = fmt.Sprintf("postgres://%s:%s@/postgres?host=%s&port=%d", cfg.User, url.QueryEscape(cfg.Password), url.QueryEscape(cfg.Host), cfg.Port)
	server.exec("ALTER DATABASE " + name + " ALLOW_CONNECTIONS false")
	server.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", strings.Trim(name, `"`))
	return func() { server.exec("ALTER DATABASE " + name + " ALLOW_CONNECTIONS true") }
}

type event struct{ id, kind, data string }

// events reads a stream until the test ends.
func (r *replica) events(path, last string) <-chan event {
	r.tb.Helper()
	req, err := http.NewRequestWithContext(r.tb.Context(), http.MethodGet, r.admin+path, nil)
	require.NoError(r.tb, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req) //nolint:bodyclose // the goroutine closes it
	require.NoError(r.tb, err)
	require.Equal(r.tb, "text/event-stream", res.Header.Get("Content-Type"))
	out := make(chan event, 100)
	go func() {
		defer res.Body.Close()
		var e event
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "":
				if e.kind != "" {
					out <- e
				}
				e = event{}
			}
		}
		close(out)
	}()
	return out
}

// BenchmarkNodePages times pages of 10,000 nodes over HTTP and a real Postgres:
// go test ./api/server -run '^$' -bench NodePages -benchtime 200x.
func BenchmarkNodePages(b *testing.B) {
	c := newCluster(b)
	r := c.replica()
	disk := `{"name":"nvme0n1","size_bytes":3840755982336,"model":"` + strings.Repeat("m", 400) + `"}`
	c.exec(`INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode, lifecycle_class, port, labels, facts)
		SELECT gen_random_uuid(), 'gpu-' || lpad(i::text, 5, '0'), 'active', 'h100', 8, 'region-' || i % 5, 'manual', 'persistent', 22,
		       jsonb_build_object('rack', 'r' || i % 200, 'tier', CASE WHEN i % 10 = 0 THEN 'test' ELSE 'prod' END),
		       jsonb_build_object('hostname', 'h', 'disks', jsonb_build_array(` + strings.TrimSuffix(strings.Repeat("'"+disk+"'::jsonb,", 10), ",") + `))
		FROM generate_series(1, 10000) i`)
	c.exec("ANALYZE nodes")
	for name, path := range map[string]string{
		"page=100":           "/nodes",
		"page=1000":          "/nodes?limit=1000",
		"names=1000":         "/nodes?fields=id,host,state&limit=1000",
		"full=100":           "/nodes?fields=id,host,state,labels,workloads,facts,identity,instance,operation",
		"completion":         "/nodes?fields=id,host,state&host_prefix=gpu-05&limit=100",
		"selector":           "/nodes?limit=1000&selector=" + url.QueryEscape("rack in (r7,r8),tier!=test"),
		"selector-no-match":  "/nodes?selector=" + url.QueryEscape("rack=none,!x"),
		"last-page-by-state": "/nodes?limit=1000&state=active&page_token=" + pageAfter("gpu-09000"),
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			size := 0
			for b.Loop() {
				start := time.Now()
				a := r.ask(http.MethodGet, path, nil)
				took = append(took, time.Since(start))
				require.Equal(b, http.StatusOK, a.status, string(a.body))
				size = len(a.body)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(size)/1024, "KiB")
		})
	}
}

// pageAfter is the token of the page that begins after a host name.
func pageAfter(host string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`["` + host + `","` + schema.NewID() + `"]`))
}
