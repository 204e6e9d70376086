package worker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A revocation makes nodes reject the key as soon as they have the set, whichever set they
// had before. Open tasks are signed again with the same body.
func TestRevocation(t *testing.T) {
	r := rotations(t)
	n, away := r.node("gpu-1"), r.node("gpu-2")
	n.follow() // the document of its set has the epoch
	stolen := r.sign()
	id, body := r.probe(n, 1)
	r.begin(rotation.TaskKey, "")
	r.advance()
	r.begin(rotation.RevokeKey, "task-test.v1")
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Positive(t, r.newest().Doc.Epoch)
	require.Equal(t, "task-test.v2", r.newest().Active().KeyID, "the staged key replaces it")

	n.follow()
	require.False(t, n.accepts(stolen))
	require.True(t, n.accepts(r.envelope(id)))
	again, err := trust.EnvelopeBody(r.envelope(id))
	require.NoError(t, err)
	require.Equal(t, body, again)
	away.follow()
	require.False(t, away.accepts(stolen))
	require.Empty(t, r.advance())
	require.Equal(t, rotation.Completed, r.last.Rotation.Outcome)
	n = r.node("gpu-3")
	require.False(t, n.accepts(stolen), "a new bundle does not list the revoked key")
	_, _, err = r.trust.Rotator.SignSet(t.Context(), newest(t, r.store),
		rotation.Target{States: map[string]trust.KeyState{"task-test.v1": trust.KeyGrace, "task-test.v2": trust.KeyActive}})
	require.Equal(t, "key_revoked", schema.AsError(err).Reason, "a revoked key does not become valid again")
}

// probe stores an open task that is signed for the node, and returns its ID and signed body.
func (r *rotating) probe(n *node, seq int64) (id string, body []byte) {
	r.t.Helper()
	id = schema.NewID()
	body, err := json.Marshal(task.Payload{TaskID: id, NodeID: n.id, OperationID: n.id, Incarnation: 1, Seq: seq, Type: task.NodeProbe})
	require.NoError(r.t, err)
	envelope, err := r.signer.Sign(r.t.Context(), body)
	require.NoError(r.t, err)
	r.storeTask(n, id, seq, envelope)
	return id, body
}

func (r *rotating) envelope(taskID string) (envelope []byte) {
	r.t.Helper()
	require.NoError(r.t, r.raw.QueryRow(r.t.Context(), "SELECT envelope FROM node_tasks WHERE task_id = $1", taskID).Scan(&envelope))
	return envelope
}

// A revocation signs nothing that the revoked key did not sign for the task: a stored envelope
// that was changed, or is another task's, ends its task and holds up no other.
func TestRevocationSignsOnlyWhatTheKeySigned(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	good, _ := r.probe(n, 1)
	other, _ := r.probe(n, 2)
	forged, body := r.probe(n, 3)
	swapped, _ := r.probe(n, 4)
	digest, _ := r.probe(n, 5)
	held, _ := r.probe(n, 6)
	change := func(id, set string, args ...any) {
		_, err := r.raw.Exec(t.Context(), "UPDATE node_tasks SET "+set+" WHERE task_id = $1", append([]any{id}, args...)...)
		require.NoError(t, err)
	}
	var e map[string]any
	require.NoError(t, json.Unmarshal(r.envelope(forged), &e))
	body = bytes.Replace(body, []byte(`"node.probe"`), []byte(`"node.wipe"`), 1)
	e["payload"] = base64.StdEncoding.EncodeToString(body)
	written, err := json.Marshal(e)
	require.NoError(t, err)
	change(forged, "envelope = $2, body_sha256 = $3", written, schema.SHA256Hex(body))
	change(held, "envelope = $2, body_sha256 = $3, status = 'running', lease_epoch = 1, lease_until = now() + interval '1 minute'", written, schema.SHA256Hex(body))
	change(swapped, "envelope = $2", r.envelope(other))
	change(digest, "body_sha256 = repeat('0', 64)")

	r.begin(rotation.RevokeKey, "task-test.v1")
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes, rotation.BlockedTasks}, r.advance())
	n.follow()
	require.Equal(t, []rotation.Blocker{rotation.BlockedTasks}, r.advance(), "the node holds one of them")
	require.Equal(t, 1, r.last.Progress.OpenTasks)
	change(held, "status = 'cancelled', finished_at = now()")
	require.Empty(t, r.advance())
	require.True(t, n.accepts(r.envelope(good)) && n.accepts(r.envelope(other)))
	for _, id := range []string{forged, swapped, digest, held} {
		require.False(t, n.accepts(r.envelope(id)))
		var status, reason string
		require.NoError(t, r.raw.QueryRow(t.Context(), "SELECT status, cancel_reason FROM node_tasks WHERE task_id = $1", id).Scan(&status, &reason))
		require.Equal(t, "cancelled", status)
		require.Contains(t, reason, "its stored envelope is not the signed one")
	}
}

// The task of the node CA that one node cannot get does not prevent the rotation from
// continuing when the node is waived.
func TestFailureOfOneNodeHoldsUpNoOther(t *testing.T) {
	r := rotations(t)
	n, broken := r.node("gpu-1"), r.node("gpu-2")
	_, err := r.raw.Exec(t.Context(), "UPDATE nodes SET last_heartbeat_at = now()")
	require.NoError(t, err)
	r.trust.NewTasks = activities.TaskSigner{Signer: r.signer, Env: "test"}
	r.trust.Rotations = failing{r.store.Rotations, broken.id}
	r.begin(rotation.NodeCA, "")
	require.Equal(t, []rotation.Blocker{rotation.BlockedReload, rotation.BlockedNodes}, r.advance())
	_, err = r.raw.Exec(t.Context(), `INSERT INTO node_api_replicas (replica_id, node_cas, seen_at) SELECT gen_random_uuid(), ca_bundle, now() FROM rotations`)
	require.NoError(t, err)
	var s activities.RotationStatus
	for range 10 {
		if s, err = r.trust.AdvanceRotation(t.Context()); err != nil {
			break
		}
	}
	require.ErrorContains(t, err, "no task for this node")
	require.Contains(t, s.Blockers, rotation.BlockedNodes)
	var sent int
	require.NoError(t, r.raw.QueryRow(t.Context(), "SELECT count(*) FROM node_tasks WHERE node_id = $1", n.id).Scan(&sent))
	require.Equal(t, 1, sent)
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Waive, NodeIDs: []string{n.id, broken.id}}))
	s, err = r.trust.AdvanceRotation(t.Context())
	require.NoError(t, err)
	require.Equal(t, rotation.Activate, s.Rotation.Phase)
}

// failing stores no task for one node.
type failing struct {
	activities.Rotations

	nodeID string
}

func (f failing) SendUpdate(ctx context.Context, r rotation.Rotation, u activities.TrustUpdate, envelope []byte) error {
	if u.NodeID == f.nodeID {
		return schema.NewError(schema.KindInternal, "no task for this node")
	}
	return f.Rotations.SendUpdate(ctx, r, u, envelope)
}
