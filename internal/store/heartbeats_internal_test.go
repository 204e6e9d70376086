package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/internal/testkit/pgtest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// claimed is a heartbeat's identity and the row it is compared with.
type claimed struct {
	state                        lifecycle.NodeState
	locked                       bool
	slot                         string // "" for no certificate of the serial
	incarnation, certIncarnation int64  // the identity's and the certificate's; the node's is 1
	fingerprint, shown           string
}

func claims() (all []claimed) {
	for _, state := range lifecycle.NodeStates() {
		for _, locked := range []bool{false, true} {
			for _, slot := range []string{"", slotPending, slotCurrent, slotRetired, "replaced"} {
				for _, inc := range [][2]int64{{1, 1}, {1, 2}, {2, 1}, {2, 2}} {
					for _, f := range [][2]string{{"a", "a"}, {"a", "b"}, {"", "b"}, {"a", ""}} {
						all = append(all, claimed{state, locked, slot, inc[0], inc[1], f[0], f[1]})
					}
				}
			}
		}
	}
	return all
}

// put adds the node and returns its heartbeat.
func (c claimed) put(t *testing.T, s *Store, host string) *heartbeat {
	t.Helper()
	b := &heartbeat{id: trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: c.incarnation},
		cert:   trust.CertFacts{Serial: "of-" + host, Fingerprint: c.shown},
		report: wire.HeartbeatRequest{AgentVersion: "v1", At: time.Now()}}
	var lock *time.Time
	reason := ""
	if c.locked {
		lock, reason = &b.report.At, "test"
	}
	_, err := s.db.Pool().Exec(t.Context(), `INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode,
		lifecycle_class, port, identity_locked_at, identity_lock_reason)
		VALUES ($1, $2, $3, 'cpu-dev', 0, 'r', 'manual', 'persistent', 22, $4, $5)`, b.id.NodeID, host, c.state, lock, reason)
	require.NoError(t, err)
	if c.slot == "" {
		return b
	}
	var retired *time.Time
	if c.slot != slotPending && c.slot != slotCurrent {
		retired = &b.report.At
	}
	_, err = s.db.Pool().Exec(t.Context(), `INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer,
		fingerprint, spki, not_before, not_after, via, sequence, retired_at)
		VALUES ($1, $2, $3, $4, '', '', '', $5, '', now(), now(), 'enroll', 1, $6)`,
		b.id.NodeID, b.cert.Serial, c.certIncarnation, c.slot, c.fingerprint, retired)
	require.NoError(t, err)
	return b
}

func openStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: pgtest.New(t, Migrate)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// The batch statement and checkIdentity accept the same identities, except that the
// statement skips heartbeats that promote a certificate or move an offline node.
func TestHeartbeatBatchMatchesCheckIdentity(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	all := claims()
	batch := make([]*heartbeat, len(all))
	good := 0
	for i, c := range all {
		batch[i] = c.put(t, s, fmt.Sprint("node-", i))
	}
	require.NoError(t, s.storeHeartbeats(ctx, batch))
	for i, b := range batch {
		row, err := s.facts(ctx, b.id.NodeID, b.cert.Serial)
		require.NoError(t, err)
		want := checkIdentity(row, b.id, b.cert) == nil && *row.Slot == slotCurrent && all[i].state != lifecycle.NodeOffline
		require.Equal(t, want, b.stored, "%+v", all[i])
		at, err := s.db.q.LastHeartbeat(ctx, b.id.NodeID)
		require.NoError(t, err)
		require.Equal(t, want, at != nil, "%+v", all[i])
		if want {
			good++
		}
	}
	require.Equal(t, (len(lifecycle.NodeStates())-2)*3, good, "every state but two, with a fingerprint that does not differ")
}

// goodNode adds a node with a valid identity.
func goodNode(t *testing.T, s *Store, host string) *heartbeat {
	t.Helper()
	return claimed{lifecycle.NodeActive, false, slotCurrent, 1, 1, "a", "a"}.put(t, s, host)
}

func (b *heartbeat) saying(version string) *heartbeat {
	out := *b
	out.report.AgentVersion = version
	return &out
}

// Of two heartbeats of one node in a batch the later is stored; it counts for the
// earlier if both show the same certificate.
func TestHeartbeatBatchStoresLatest(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	node := goodNode(t, s, "a")
	first, last := node.saying("v1"), node.saying("v2")
	foreign := goodNode(t, s, "b").saying("v1")
	other := *foreign
	other.cert.Serial = "unknown"
	require.NoError(t, s.storeHeartbeats(ctx, []*heartbeat{first, foreign, last, &other}))
	require.True(t, first.stored)
	require.True(t, last.stored)
	require.False(t, other.stored)
	require.False(t, foreign.stored, "it showed another certificate")
	n, err := s.Node(ctx, node.id.NodeID)
	require.NoError(t, err)
	require.Equal(t, "v2", n.AgentVersion)
}

// A value that the database rejects fails only its own heartbeat.
func TestHeartbeatBatchIsolatesBadValue(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	good, bad, odd := goodNode(t, s, "a"), goodNode(t, s, "b"), goodNode(t, s, "c")
	bad.report.Workloads = []task.Workload{{Name: "a\x00"}}
	odd.report.BootID, odd.report.Phase = "\x00\xff", "x\x00"
	odd.id.NodeID = "no id"
	require.NoError(t, s.storeHeartbeats(ctx, []*heartbeat{good, bad, odd}))
	require.False(t, good.stored)
	errs := make([]error, 3)
	var group sync.WaitGroup
	for i, b := range []*heartbeat{good, bad, odd} {
		group.Go(func() { errs[i] = s.Heartbeat(ctx, b.id, b.cert, b.report) })
	}
	group.Wait()
	require.NoError(t, errs[0])
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(errs[1]))
	require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(errs[2]))
	text := goodNode(t, s, "d")
	text.report.BootID, text.report.Phase = "\x00\xff", "x\x00"
	require.NoError(t, s.storeHeartbeats(ctx, []*heartbeat{good, text}))
	require.True(t, text.stored, "text is cleaned")
}

// A batch updates its rows in place and writes no index.
func TestHeartbeatBatchWritesNoIndex(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	batch := map[string]*heartbeat{}
	for i := range 8 {
		b := goodNode(t, s, fmt.Sprint("node-", i))
		batch[b.id.NodeID] = b
	}
	p, err := heartbeatColumns(batch)
	require.NoError(t, err)
	conn, err := s.db.Pool().Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(ctx))
	inPlace := func() (n int) {
		require.NoError(t, tx.QueryRow(ctx, "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'nodes'").Scan(&n))
		return n
	}
	before := inPlace()
	taken, err := sqlc.New(tx).StoreHeartbeats(ctx, p)
	require.NoError(t, err)
	require.Len(t, taken, len(batch))
	require.Equal(t, before+len(batch), inPlace())
}
