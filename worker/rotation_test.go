package worker

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// rotating is a bench with published sets, the activities that rotate keys and nodes.
type rotating struct {
	*bench
	t      *testing.T
	trust  *activities.Trust
	signer *vault.Client
	raw    *pgx.Conn
	api    *store.Store // with the role of the admin API
	last   activities.RotationStatus
}

// operator is the subject of the tests' decisions.
var operator = audit.Subject{Actor: "alice", Via: "api"}

func rotations(t *testing.T) *rotating {
	t.Helper()
	b := prepared(t)
	_, err := b.publish(t)
	require.NoError(t, err)
	r := &rotating{bench: b, t: t, signer: b.login(t)}
	rotator, err := vault.LoginRotator(t.Context(), vault.Config{Address: b.vault.Address, Env: "test", Log: slog.New(slog.DiscardHandler),
		RoleIDFile: filepath.Join(b.dir, "rotator-role-id"), SecretIDFile: filepath.Join(b.dir, "rotator-secret-id")})
	require.NoError(t, err)
	t.Cleanup(rotator.Close)
	sets := vault.NewSetFollower(b.store.Identities, r.signer.Follow, slog.New(slog.DiscardHandler), func(bool) {})
	require.NoError(t, sets.Refresh(t.Context()))
	r.trust = &activities.Trust{Rotations: b.store.Rotations, Sets: b.store.Identities, Rotator: rotator, Driver: undriven{},
		Signer: r.signer, Follow: sets.Refresh}
	r.api, err = store.Open(t.Context(), store.Config{URL: pgtest.As(b.url, store.RoleAPIAdmin)})
	require.NoError(t, err)
	t.Cleanup(r.api.Close)
	r.raw, err = pgx.Connect(t.Context(), b.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.raw.Close(context.WithoutCancel(t.Context())) })
	return r
}

// undriven is a Temporal in which no workflow runs: the tests call the activities.
type undriven struct{}

func (undriven) Drive(context.Context, rotation.Rotation) error { return nil }

// node is a node with the sets that it verified one after the other.
type node struct {
	r     *rotating
	id    string
	set   trust.VerifierSet
	roots trust.VerifierKeys
}

// node adds a node that has the newest set from its bundle.
func (r *rotating) node(host string) *node {
	r.t.Helper()
	require.NoError(r.t, r.trust.Follow(r.t.Context()))
	given, err := r.signer.TaskTrust(r.t.Context())
	require.NoError(r.t, err)
	n := &node{r: r, id: schema.NewID(), set: trust.Bundled(given.Keys, given.Floor), roots: given.Roots}
	_, err = r.raw.Exec(r.t.Context(), `INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode, lifecycle_class,
		port, polled_incarnation, set_version, set_hash) VALUES ($1, $2, 'active', 'h100', 8, 'r', 'manual', 'persistent', 22, 1, $3, $4)`,
		n.id, host, given.Floor.Version, given.Floor.Hash)
	require.NoError(r.t, err)
	return n
}

// follow loads the sets up to the newest one as the agent does, and reports the one in use.
func (n *node) follow() {
	n.r.t.Helper()
	require.NoError(n.r.t, n.tryFollow())
}

// tryFollow is follow, and returns why the node rejects the newest set. It keeps the last one
// then.
func (n *node) tryFollow() (rejected error) {
	n.r.t.Helper()
	sets, err := n.r.store.Identities.SetsAfter(n.r.t.Context(), 0, 64)
	require.NoError(n.r.t, err)
	for _, s := range sets {
		next, err := n.set.Next("test", n.set.TrustedRoots(n.roots), s.Document)
		switch e := schema.AsError(err); {
		case e == nil:
			n.set, rejected = next, nil
		case e.Reason != trust.ReasonSetOld: // a later one may have a higher epoch
			rejected = cmp.Or(rejected, err)
		}
	}
	n.report(n.set)
	return rejected
}

// report stores a set as the one that the node named in its last poll.
func (n *node) report(set trust.VerifierSet) {
	n.r.t.Helper()
	_, err := n.r.raw.Exec(n.r.t.Context(), "UPDATE nodes SET set_version = $2, set_hash = $3 WHERE node_id = $1", n.id, set.Doc.Version, set.Hash)
	require.NoError(n.r.t, err)
}

// accepts reports whether the node accepts a signed task.
func (n *node) accepts(envelope []byte) bool {
	_, _, err := trust.OpenEnvelope(task.PayloadType, envelope, n.set.Accepted())
	return err == nil
}

func (r *rotating) begin(k rotation.Kind, key string) {
	r.t.Helper()
	_, err := r.api.Rotations.BeginRotation(r.t.Context(), withReason(rotation.Begin(k, key, 0)), operator)
	require.NoError(r.t, err)
}

func withReason(r rotation.Rotation) rotation.Rotation {
	r.Reason = "quarterly"
	return r
}

func (r *rotating) decide(d rotation.Decided) error {
	d.Reason = "CHG-1"
	_, err := r.api.Rotations.DecideRotation(r.t.Context(), d, operator)
	return err
}

// advance runs the activity until nothing changes, and returns what the rotation waits for.
func (r *rotating) advance() []rotation.Blocker {
	r.t.Helper()
	for range 20 {
		s, err := r.trust.AdvanceRotation(r.t.Context())
		require.NoError(r.t, err)
		if s.Open {
			r.last = s
		}
		if !s.Again {
			return s.Blockers
		}
	}
	require.Fail(r.t, "the rotation does not come to rest", "%+v", r.last)
	return nil
}

func (r *rotating) sign() []byte {
	r.t.Helper()
	envelope, err := r.signer.Sign(r.t.Context(), []byte(`{}`))
	require.NoError(r.t, err)
	return envelope
}

// task stores an open task with an envelope, and returns its ID.
func (r *rotating) task(n *node, envelope []byte) (id string) {
	r.t.Helper()
	id = schema.NewID()
	r.storeTask(n, id, 1, envelope)
	return id
}

func (r *rotating) storeTask(n *node, id string, seq int64, envelope []byte) {
	r.t.Helper()
	digest, err := trust.EnvelopeDigest(envelope)
	require.NoError(r.t, err)
	_, err = r.raw.Exec(r.t.Context(), `INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, operation_id, op_seq, step,
		envelope, envelope_expires_at, body_sha256, key_id, owner_workflow_id, owner_run_id, owner_activity_id)
		VALUES ($1, $2, 1, $6, 'node.probe', 'read', $2, 1, $7, $3, now() + interval '1 hour', $4, $5, '', '', '')`,
		id, n.id, envelope, digest, trust.SigningKey(envelope), seq, id)
	require.NoError(r.t, err)
}

func (r *rotating) newest() trust.VerifierSet {
	r.t.Helper()
	set, err := trust.ParseVerifierSet(newest(r.t, r.store).Document)
	require.NoError(r.t, err)
	return set
}

// A rotation of the task key leaves a phase only when every node that is not waived has
// confirmed it, no open task needs the old key and, before the last phase, an operator
// approved it. No node rejects a task meanwhile, and a node that was offline through all
// phases walks the sets.
func TestTaskKeyRotation(t *testing.T) {
	r := rotations(t)
	here, away := r.node("gpu-1"), r.node("gpu-2")
	old := r.sign()
	r.begin(rotation.TaskKey, "")

	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Equal(t, rotation.Stage, r.last.Rotation.Phase)
	require.Len(t, r.last.Progress.Waiting, 2)
	here.follow()
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Equal(t, "gpu-2", r.last.Progress.Waiting[0].Host)
	_, err := r.raw.Exec(t.Context(), "UPDATE nodes SET state = 'draining', last_heartbeat_at = now() - interval '1 hour' * (node_id = $1)::int", away.id)
	require.NoError(t, err)
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Waive, Offline: true}))

	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Equal(t, rotation.Activate, r.last.Rotation.Phase)
	require.Equal(t, "task-test.v2", r.newest().Active().KeyID)
	outdated := r.sign() // by a worker that has not read the set yet
	require.Equal(t, "task-test.v1", trust.SigningKey(outdated))
	require.NoError(t, r.trust.Follow(t.Context()), "the flip needs no restart")
	signed := r.sign()
	require.Equal(t, "task-test.v2", trust.SigningKey(signed))
	here.follow()
	require.True(t, here.accepts(old) && here.accepts(outdated) && here.accepts(signed))
	open := r.task(here, outdated)

	require.Equal(t, []rotation.Blocker{rotation.BlockedTasks, rotation.BlockedApproval}, r.advance())
	require.Equal(t, rotation.Grace, r.last.Rotation.Phase)
	_, err = r.raw.Exec(t.Context(), "UPDATE node_tasks SET status = 'succeeded', finished_at = now() WHERE task_id = $1", open)
	require.NoError(t, err)
	require.Equal(t, []rotation.Blocker{rotation.BlockedApproval}, r.advance())
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))

	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Equal(t, rotation.Retire, r.last.Rotation.Phase)
	require.Equal(t, "not_reversible", schema.AsError(r.decide(rotation.Decided{Decision: rotation.Rollback})).Reason)
	here.follow()
	require.Empty(t, r.advance())
	require.Equal(t, rotation.Completed, r.last.Rotation.Outcome)
	require.False(t, here.accepts(old))
	require.True(t, here.accepts(signed))
	_, err = r.vault.Root(t).Logical().Write("transit/sign/task-test", map[string]any{"input": "e30=", "key_version": 1})
	require.Error(t, err, "Vault no longer signs with the old key")
	away.follow()
	require.True(t, away.accepts(signed) && !away.accepts(old), "a node that returns walks the sets")
	r.requireTrail(3)
}

// requireTrail checks the audit events of a rotation that published a number of sets after
// the first one.
func (r *rotating) requireTrail(sets int) {
	r.t.Helper()
	events, err := r.store.Admin.AuditStream(r.t.Context(), audit.SystemStream, 0, 1000)
	require.NoError(r.t, err)
	counts := map[string]int{}
	for _, e := range events {
		counts[e.Action]++
	}
	require.Equal(r.t, sets+1, counts[audit.SetPublished])
	require.Equal(r.t, 1, counts[audit.RotationStarted])
	require.Equal(r.t, 1, counts[audit.RotationEnded])
	require.Positive(r.t, counts[audit.RotationDecided])
}

// A rotation is rolled back from each phase that can be undone. Tasks that the new key
// signed are verified until they ended. The next rotation uses another key.
func TestRotationRollsBackFromEachPhase(t *testing.T) {
	for _, kind := range []rotation.Kind{rotation.TaskKey, rotation.SetRoot} {
		for _, phase := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace} {
			t.Run(string(kind)+" "+string(phase), func(t *testing.T) {
				r := rotations(t)
				n := r.node("gpu-1")
				before := r.newest()
				r.begin(kind, "")
				r.advance()
				for r.last.Rotation.Phase != phase {
					n.follow()
					r.advance()
				}
				require.NoError(t, r.trust.Follow(t.Context()))
				signed := r.sign()
				open := r.task(n, signed)
				require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Rollback}))
				require.NotEmpty(t, r.advance(), "the node has not confirmed the rollback")
				n.follow()
				require.True(t, n.accepts(signed), "a task that was sent is still accepted")
				_, err := r.raw.Exec(t.Context(), "UPDATE node_tasks SET status = 'succeeded', finished_at = now() WHERE task_id = $1", open)
				require.NoError(t, err)
				r.advance()
				n.follow()
				require.Empty(t, r.advance())
				require.Equal(t, rotation.RolledBack, r.last.Rotation.Outcome)
				require.Equal(t, before.Doc.Keys, r.newest().Doc.Keys)
				require.NoError(t, r.trust.Follow(t.Context()))
				require.True(t, n.accepts(r.sign()))

				undone := r.last.Rotation.NewKey
				r.begin(kind, "")
				r.advance()
				require.NotEqual(t, undone, r.last.Rotation.NewKey)
			})
		}
	}
}

// After a rotation of the root key, nodes accept sets of the new root key only, and a node
// that was offline verifies the change itself.
func TestSetRootRotation(t *testing.T) {
	r := rotations(t)
	n, away := r.node("gpu-1"), r.node("gpu-2")
	require.NoError(t, r.decideAll(rotation.SetRoot, n, away))
	require.Equal(t, rotation.Completed, r.last.Rotation.Outcome)
	require.Equal(t, "set-root-test.v2", trust.SigningKey(newest(t, r.store).Document))
	away.follow()
	require.Equal(t, n.set.Hash, away.set.Hash)
	require.Equal(t, []string{"set-root-test.v2"}, keyIDs(away.set.Doc.Roots))
	given, err := r.signer.TaskTrust(t.Context())
	require.NoError(t, err)
	_, err = trust.ParseTaskTrust(given.String())
	require.NoError(t, err)
	require.NoError(t, r.decideAll(rotation.TaskKey, n, away), "the new root key signs a rotation of the task key")
	require.True(t, n.accepts(r.sign()))
	r.node("gpu-3").follow()
}

// decideAll runs a rotation to its end with one node that follows and one that is waived.
func (r *rotating) decideAll(k rotation.Kind, follows, waived *node) error {
	r.begin(k, "")
	err := r.decide(rotation.Decided{Decision: rotation.Waive, NodeIDs: []string{waived.id}})
	if err == nil {
		err = r.decide(rotation.Decided{Decision: rotation.Approve})
	}
	for range 5 {
		r.advance()
		require.NoError(r.t, r.trust.Follow(r.t.Context()))
		follows.follow()
	}
	return err
}

func keyIDs(keys trust.VerifierKeys) (ids []string) {
	for _, k := range keys {
		ids = append(ids, k.KeyID)
	}
	return slices.Sorted(slices.Values(ids))
}

// There is one rotation at a time. A caller that was overtaken publishes nothing.
func TestRotationsExcludeEachOther(t *testing.T) {
	r := rotations(t)
	r.node("gpu-1")
	r.begin(rotation.TaskKey, "")
	_, err := r.api.Rotations.BeginRotation(t.Context(), withReason(rotation.Begin(rotation.SetRoot, "", 0)), operator)
	require.Equal(t, schema.KindOperationInProgress, schema.KindOf(err))
	read, _, err := r.store.Rotations.OpenRotation(t.Context())
	require.NoError(t, err)
	r.advance()
	first := newest(t, r.store)
	set, due, err := r.trust.Rotator.SignSet(t.Context(), first, rotation.Target{States: map[string]trust.KeyState{"task-test.v1": trust.KeyActive}})
	require.NoError(t, err)
	require.True(t, due)
	require.Equal(t, schema.KindFenced, schema.KindOf(r.store.Rotations.SaveRotation(t.Context(), read, &set)))
	require.Equal(t, first, newest(t, r.store))
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Pause}))
	require.Equal(t, rotation.BlockedPaused, r.advance()[0])
}

// The schedule renews a set after half of its lifetime, and no set lives longer than 90 days.
func TestSetsRenewThemselves(t *testing.T) {
	r := rotations(t)
	require.LessOrEqual(t, r.newest().Doc.ExpiresAt.Sub(r.newest().Doc.IssuedAt), 90*24*time.Hour)
	m, err := r.trust.MaintainTrust(t.Context())
	require.NoError(t, err)
	require.Equal(t, activities.Maintenance{SetVersion: 1, ExpiresAt: r.newest().Doc.ExpiresAt}, m)
	_, err = r.raw.Exec(t.Context(), "DELETE FROM verifier_sets")
	require.NoError(t, err)
	aged, err := r.admin(t).First(t.Context(), time.Now().Add(-vault.VerifierSetLifetime*2/3))
	require.NoError(t, err)
	require.NoError(t, r.store.Identities.PutSet(t.Context(), aged, operator))
	m, err = r.trust.MaintainTrust(t.Context())
	require.NoError(t, err)
	require.True(t, m.Renewed)
	require.Equal(t, int64(2), r.newest().Doc.Version)
	require.Greater(t, time.Until(m.ExpiresAt), vault.VerifierSetLifetime*9/10)
}
