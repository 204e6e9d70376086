package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// memoryCA is a node CA in memory. The test of internal/vault has the real one.
type memoryCA struct {
	activities.KeyRotator

	live   []string // the oldest first
	issues string
	made   int
}

func (m *memoryCA) PlanCA(context.Context) (oldCA, newCA string, err error) {
	return m.issues, "g" + string(rune('1'+m.made)), nil
}

func (m *memoryCA) ApplyCA(_ context.Context, r rotation.Rotation) (rotation.CA, error) {
	if r.Phase == rotation.Stage && !slices.Contains(m.live, r.NewKey) {
		m.live, m.made = append(m.live, r.NewKey), m.made+1
	}
	m.issues = r.OldKey
	if slices.Contains([]rotation.Phase{rotation.Activate, rotation.Grace, rotation.Retire}, r.Phase) {
		m.issues = r.NewKey
	}
	gone := map[rotation.Phase]string{rotation.Retire: r.OldKey, rotation.Remove: r.NewKey}[r.Phase]
	m.live = slices.DeleteFunc(m.live, func(name string) bool { return name == gone })
	return rotation.CA{Bundle: m.bundle(), Issuer: "CN=" + m.issues, IssuerKey: "key of " + m.issues}, nil
}

func (m *memoryCA) bundle() string {
	data, _ := json.Marshal(m.live)
	return schema.SHA256Hex(data)
}

func (m *memoryCA) FinishKey(context.Context, rotation.Rotation) error { return nil }

// Sign implements activities.Signer.
func (m *memoryCA) Sign(_ context.Context, payload []byte) ([]byte, error) {
	return json.Marshal(map[string]any{"payloadType": task.PayloadType, "payload": base64.StdEncoding.EncodeToString(payload),
		"signatures": []map[string]string{{"keyid": "task-test.v1", "sig": "AA=="}}})
}

// caBench is a rotation of the node CA on a database, with nodes that do what their tasks ask.
type caBench struct {
	rotating

	ca   *memoryCA
	node *store.Store // with the role of the node API
}

func caRotations(t *testing.T) *caBench {
	t.Helper()
	url := pgtest.New(t, store.Migrate)
	b := &caBench{ca: &memoryCA{live: []string{"g1"}, issues: "g1", made: 1}, rotating: rotating{t: t, bench: &bench{url: url}}}
	for role, s := range map[string]**store.Store{store.RoleWorker: &b.store, store.RoleAPIAdmin: &b.api, store.RoleAPINode: &b.node} {
		opened, err := store.Open(t.Context(), store.Config{URL: pgtest.As(url, role)})
		require.NoError(t, err)
		t.Cleanup(opened.Close)
		*s = opened
	}
	var err error
	b.raw, err = pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.raw.Close(context.WithoutCancel(t.Context())) })
	b.trust = &activities.Trust{Rotations: b.store.Rotations, Rotator: b.ca, Driver: undriven{}, NewTasks: activities.TaskSigner{Signer: b.ca, Env: "test"}}
	return b
}

// caNode is a node with a certificate and a bundle.
type caNode struct {
	b      *caBench
	id     string
	caller nodeapi.Caller
	asked  []trust.TrustParams
	seq    int64
}

func (b *caBench) add(host string) *caNode {
	b.t.Helper()
	n := &caNode{b: b, id: schema.NewID()}
	n.caller = nodeapi.Caller{NodeID: n.id, Incarnation: 1, HasPolled: true, Host: host}
	b.exec(`INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode, lifecycle_class, port, polled_incarnation,
		last_heartbeat_at, op_seq) VALUES ($1, $2, 'active', 'h100', 8, 'r', 'manual', 'persistent', 22, 1, now(), 3)`, n.id, host)
	n.renew("g1")
	n.report("")
	return n
}

func (b *caBench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.raw.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

// renew makes a certificate of the CA the one that the server last accepted.
func (n *caNode) renew(issuer string) {
	n.b.t.Helper()
	n.seq++
	n.b.exec("UPDATE node_certificates SET slot = 'retired', retired_at = now() WHERE node_id = $1 AND slot = 'current'", n.id)
	n.b.exec(`INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki, not_before, not_after, via, sequence)
		VALUES ($1, $2, 1, 'current', '', '', $3, '', '', now(), now() + interval '1 day', 'renew', $4)`, n.id, schema.NewID(), "CN="+issuer, n.seq)
}

// report makes a poll with the digest of the node's bundle.
func (n *caNode) report(digest string) {
	n.b.t.Helper()
	n.b.exec("UPDATE nodes SET last_heartbeat_at = now() WHERE node_id = $1", n.id)
	require.NoError(n.b.t, n.b.node.Identities.RecordPoll(n.b.t.Context(), n.caller, wire.PollRequest{NodeCABundle: digest}))
	n.caller.CABundle = digest
}

// work takes the node's task, does what it asks and reports the result. false if there is none.
func (n *caNode) work() bool {
	t := n.b.t
	t.Helper()
	d, err := n.b.node.Tasks.NextTask(t.Context(), n.caller, wire.PollRequest{AgentSession: "s"}, time.Minute, nil)
	require.NoError(t, err)
	if d == nil {
		return false
	}
	body, err := trust.EnvelopeBody(d.Envelope)
	require.NoError(t, err)
	var p task.Payload
	require.NoError(t, json.Unmarshal(body, &p))
	require.Equal(t, task.UpdateTrust, p.Type)
	require.Zero(t, p.Expect.OpSeq, "it belongs to no operation")
	var params trust.TrustParams
	require.NoError(t, json.Unmarshal(p.Params, &params))
	n.asked = append(n.asked, params)
	_, err = n.b.node.Tasks.Result(t.Context(), n.caller, d.TaskID, nodeapi.ReceivedResult{Result: task.Result{LeaseEpoch: d.Lease.Epoch, Status: task.Succeeded,
		Output: json.RawMessage(`{}`), StartedAt: time.Now(), FinishedAt: time.Now()}})
	require.NoError(t, err)
	n.report(params.NodeCABundle)
	if params.IssuerKey != "" {
		require.Equal(t, "key of "+n.b.ca.issues, params.IssuerKey)
		n.renew(n.b.ca.issues)
	}
	return true
}

func (b *caBench) begin() {
	b.t.Helper()
	b.rotating.begin(rotation.NodeCA, "")
}

// reloaded makes a replica of the API read the CAs again, the only one if it has no name.
func (b *caBench) reloaded(name ...string) {
	b.t.Helper()
	replica := uuid.NewSHA1(uuid.Nil, []byte(strings.Join(name, ""))).String()
	require.NoError(b.t, b.node.Inventory.RecordReceiving(b.t.Context(), replica, b.ca.bundle()))
}

// to begins a rotation and reaches a phase.
func (b *caBench) to(phase rotation.Phase, nodes ...*caNode) {
	b.t.Helper()
	b.begin()
	b.reach(phase, nodes...)
}

// reach advances the rotation to a phase with nodes that do their tasks.
func (b *caBench) reach(phase rotation.Phase, nodes ...*caNode) {
	b.t.Helper()
	for range 10 {
		b.advance()
		if b.last.Rotation.Phase == phase {
			return
		}
		for _, n := range nodes {
			n.work()
		}
		b.reloaded()
	}
	require.Equal(b.t, phase, b.last.Rotation.Phase)
}

// A rotation of the node CA leaves a phase only when every node that is not waived has the
// phase's bundle, or uses a certificate of the phase's CA. Nodes get signed tasks, once each.
// An offline node is named, and gets none.
func TestNodeCARotation(t *testing.T) {
	b := caRotations(t)
	here, away := b.add("gpu-1"), b.add("gpu-2")
	b.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '1 hour' WHERE node_id = $1", away.id)
	b.reloaded("stopped")
	b.reloaded("b")
	b.exec("UPDATE node_api_replicas SET seen_at = now() - interval '3 minutes' WHERE seen_at < (SELECT max(seen_at) FROM node_api_replicas)")
	b.begin()

	require.Equal(t, []rotation.Blocker{rotation.BlockedReload, rotation.BlockedNodes}, b.advance())
	require.Equal(t, []string{"g1", "g2"}, b.ca.live)
	require.Equal(t, "g1", b.ca.issues, "the new CA issues nothing yet")
	require.Len(t, b.last.Progress.Waiting, 2)
	b.reloaded("a")
	require.Equal(t, []rotation.Blocker{rotation.BlockedReload, rotation.BlockedNodes}, b.advance(), "replica b has the old CA only")
	require.Equal(t, []int{2, 1}, []int{b.last.Progress.Replicas, b.last.Progress.Reloaded})
	require.False(t, here.work(), "a replica would send it the old bundle")
	b.reloaded("b")
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, b.advance())
	b.advance()
	require.True(t, here.work())
	require.False(t, here.work(), "a second look sends no second task")
	require.Equal(t, trust.TrustParams{NodeCABundle: b.ca.bundle()}, here.asked[0])
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, b.advance())
	require.Equal(t, "gpu-2", b.last.Progress.Waiting[0].Host)
	require.False(t, away.work(), "an offline node gets no task that would be outdated on its return")
	require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Waive, Offline: true}))

	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, b.advance())
	require.Equal(t, rotation.Activate, b.last.Rotation.Phase)
	require.Equal(t, "g2", b.ca.issues)
	require.Equal(t, "CN=g1", b.last.Progress.Waiting[0].Issuer)
	require.True(t, here.work())
	require.Equal(t, []rotation.Blocker{rotation.BlockedApproval}, b.advance())
	require.Equal(t, rotation.Grace, b.last.Rotation.Phase)
	here.renew("g1")
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes, rotation.BlockedApproval}, b.advance(), "a node uses the old CA again")
	here.renew("g2")
	require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Approve}))

	require.Equal(t, []rotation.Blocker{rotation.BlockedReload, rotation.BlockedNodes}, b.advance())
	require.Equal(t, rotation.Retire, b.last.Rotation.Phase)
	require.Equal(t, []string{"g2"}, b.ca.live)
	require.Zero(t, b.tasksOf(rotation.Retire), "a replica would send both CAs")
	b.reloaded("a")
	b.reloaded("b")
	b.advance()
	require.Equal(t, "not_reversible", schema.AsError(b.decide(rotation.Decided{Decision: rotation.Rollback})).Reason)
	require.True(t, here.work())
	require.Empty(t, b.advance())
	require.Equal(t, rotation.Completed, b.last.Rotation.Outcome)
	require.Len(t, here.asked, 3)
	b.requireTrail()
}

// tasksOf counts the tasks that were sent in a phase.
func (b *caBench) tasksOf(phase rotation.Phase) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.raw.QueryRow(b.t.Context(), "SELECT count(*) FROM node_tasks WHERE step LIKE $1 || '.%'", string(phase)).Scan(&n))
	return n
}

// requireTrail checks that each task has its audit events and that no message for an activity
// is left.
func (b *caBench) requireTrail() {
	b.t.Helper()
	var open, messages int
	require.NoError(b.t, b.raw.QueryRow(b.t.Context(), "SELECT count(*) FILTER (WHERE finished_at IS NULL) FROM node_tasks").Scan(&open))
	require.NoError(b.t, b.raw.QueryRow(b.t.Context(), "SELECT count(*) FROM outbox").Scan(&messages))
	require.Zero(b.t, open)
	require.Zero(b.t, messages, "no activity waits for these tasks")
}

// A rotation of the node CA is rolled back from each phase that can be undone: nodes renew onto
// the old CA before the new one is distrusted. The next rotation makes another CA.
func TestNodeCARollsBackFromEachPhase(t *testing.T) {
	for _, phase := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace} {
		t.Run(string(phase), func(t *testing.T) {
			b := caRotations(t)
			n := b.add("gpu-1")
			b.to(phase, n)
			require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Rollback}))
			require.Contains(t, b.advance(), rotation.BlockedNodes)
			require.Equal(t, "g1", b.ca.issues)
			for range 5 {
				if phase != rotation.Stage && b.last.Rotation.Phase == rotation.Restore {
					require.Equal(t, []string{"g1", "g2"}, b.ca.live, "both are trusted until no node uses the new CA")
				}
				b.reloaded()
				b.advance()
				n.work()
			}
			require.Equal(t, rotation.RolledBack, b.last.Rotation.Outcome)
			require.Equal(t, []string{"g1"}, b.ca.live)
			b.requireTrail()
			b.begin()
			b.advance()
			require.NotEqual(t, "g2", b.last.Rotation.NewKey)
		})
	}
}

// The reclaimer leaves the tasks of an open rotation alone, and voids them after its end. A
// node whose task ended without an effect gets another one later.
func TestNodeCATasksAreReclaimed(t *testing.T) {
	b := caRotations(t)
	n := b.add("gpu-1")
	b.to(rotation.Stage, n)
	b.reloaded()
	b.advance()
	reclaim := func() activities.ReclaimReport {
		report, err := b.store.Tasks.Reclaim(t.Context(), activities.ReclaimRequest{Limit: 10})
		require.NoError(t, err)
		return report
	}
	require.Empty(t, reclaim().Decisions)
	b.exec("UPDATE node_tasks SET status = 'failed', finished_at = now()")
	b.advance()
	require.False(t, n.work(), "it is not repeated at once")
	b.exec("UPDATE node_tasks SET finished_at = now() - interval '1 hour'")
	b.advance()
	require.True(t, n.work())
	b.reloaded()
	b.advance() // the task of the next phase
	b.exec("UPDATE rotations SET ended_at = now(), outcome = 'superseded'")
	require.Len(t, reclaim().Decisions, 1)
	require.False(t, n.work())
}

// A paused rotation of the node CA sends no node a task, although the replicas are ready for it.
func TestPausedNodeCARotationSendsNoTasks(t *testing.T) {
	b := caRotations(t)
	b.add("gpu-1")
	b.begin()
	b.advance()
	require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Pause}))
	b.reloaded()
	require.Equal(t, []rotation.Blocker{rotation.BlockedPaused, rotation.BlockedNodes}, b.advance())
	require.Zero(t, b.tasksOf(rotation.Stage))
	require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Resume}))
	b.advance()
	require.Equal(t, 1, b.tasksOf(rotation.Stage))
}

// A node whose updates fail waits twice as long after each, and does not take the turn of a node
// that has waited longer.
func TestNodeCAUpdatesThatFail(t *testing.T) {
	b := caRotations(t)
	nodes := []string{b.add("gpu-1").id, b.add("gpu-2").id}
	slices.Sort(nodes)
	b.begin()
	b.advance()
	b.reloaded()
	b.advance() // sends both tasks
	next := func() (ids []string) {
		t.Helper()
		all, err := b.store.Rotations.NodesToUpdate(t.Context(), b.last.Rotation, 1)
		require.NoError(t, err)
		for _, u := range all {
			ids = append(ids, u.NodeID)
		}
		return ids
	}
	failed := func(id, ago string) {
		t.Helper()
		b.exec("UPDATE node_tasks SET status = 'failed', finished_at = now() - $2::interval WHERE node_id = $1", id, ago)
	}
	require.Empty(t, next(), "both have an open task")
	failed(nodes[0], "3 minutes")
	failed(nodes[1], "4 minutes")
	require.Equal(t, nodes[1:], next())
	b.advance()
	failed(nodes[0], "3 minutes")
	failed(nodes[1], "3 minutes")
	require.Empty(t, next(), "the second failure doubles the wait")
	failed(nodes[0], "5 minutes")
	require.Equal(t, nodes[:1], next())
}

// What a delayed run of an earlier phase changed at the CA is repaired by the next look, in each
// later phase, also long after that phase began. The rotation continues as before.
func TestNodeCADriftIsRepaired(t *testing.T) {
	b := caRotations(t)
	n := b.add("gpu-1")
	b.to(rotation.Stage, n)
	delayed := b.last.Rotation
	drift := func() {
		_, err := b.ca.ApplyCA(t.Context(), delayed)
		require.NoError(t, err)
		require.Equal(t, "g1", b.ca.issues)
	}
	b.reach(rotation.Activate, n)
	waits := b.advance()
	for range 2 {
		drift()
		require.Equal(t, waits, b.advance())
		require.Equal(t, "g2", b.ca.issues)
		require.Equal(t, rotation.Activate, b.last.Rotation.Phase)
	}
	require.True(t, n.work())
	require.Equal(t, []rotation.Blocker{rotation.BlockedApproval}, b.advance())
	require.Equal(t, rotation.Grace, b.last.Rotation.Phase)

	drift()
	n.renew("g1") // before the repair
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes, rotation.BlockedApproval}, b.advance())
	require.Equal(t, "g2", b.ca.issues)
	n.renew("g2")
	require.Equal(t, []rotation.Blocker{rotation.BlockedApproval}, b.advance())

	require.NoError(t, b.decide(rotation.Decided{Decision: rotation.Rollback}))
	b.advance()
	require.Equal(t, rotation.Restore, b.last.Rotation.Phase)
	delayed.Phase = rotation.Activate
	_, err := b.ca.ApplyCA(t.Context(), delayed)
	require.NoError(t, err)
	require.Equal(t, "g2", b.ca.issues)
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, b.advance())
	require.Equal(t, "g1", b.ca.issues)
}
