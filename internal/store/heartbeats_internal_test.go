package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
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

// batches notes what a gathering asks for.
type batches struct {
	*gathering[beat]
	mu    sync.Mutex
	sizes []int
	err   error
	takes time.Duration
}

func (b *batches) ask(ctx context.Context, beats []*beat) error {
	b.mu.Lock()
	b.sizes = append(b.sizes, len(beats))
	b.mu.Unlock()
	<-time.After(b.takes)
	return errors.Join(b.err, ctx.Err())
}

func (b *batches) bringOne(ctx context.Context) error { return b.bring(ctx, &beat{}, b.ask) }

// bringAll brings n at once and requires that they are all answered.
func (b *batches) bringAll(t *testing.T, n int) {
	t.Helper()
	var group sync.WaitGroup
	for range n {
		group.Go(func() { require.NoError(t, b.bringOne(t.Context())) })
	}
	group.Wait()
}

func TestHeartbeatsAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := batches{gathering: newBeats()}
		start := time.Now()
		b.bringAll(t, 3)
		require.Equal(t, start.Add(beatPause), time.Now(), "those that come together share the shortest wait")
		var group sync.WaitGroup
		for i := range 10 {
			group.Go(func() {
				<-time.After(time.Duration(i) * 10 * time.Millisecond)
				require.NoError(t, b.bringOne(t.Context()))
			})
		}
		group.Wait()
		require.Equal(t, start.Add(beatPause+beatWindow), time.Now())
		require.Equal(t, []int{3, 10}, b.sizes)
		<-time.After(beatWindow)
		b.bringAll(t, 1)
		require.Equal(t, start.Add(2*(beatPause+beatWindow)), time.Now())
	})
}

func TestAFullBatchWaitsNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := batches{gathering: newBeats()}
		start := time.Now()
		b.bringAll(t, maxBeats)
		require.Equal(t, start, time.Now())
		b.bringAll(t, 1)
		require.Equal(t, []int{maxBeats, 1}, b.sizes)
	})
}

// Identities are looked up at once, and together while one look is under way; one
// that hangs holds the next up for a moment only.
func TestIdentitiesAreGatheredWhileOneIsLookedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rules := newAsked()
		b := batches{gathering: &gathering[beat]{pause: rules.pause, window: rules.window, eager: rules.eager, most: rules.most},
			takes: 5 * time.Millisecond}
		start := time.Now()
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() { require.NoError(t, b.bringOne(t.Context())) })
			synctest.Wait()
		}
		group.Wait()
		require.Equal(t, []int{1, 7}, b.sizes)
		require.Equal(t, start.Add(2*b.takes), time.Now())
		b.bringAll(t, 1)
		require.Equal(t, start.Add(3*b.takes), time.Now(), "nothing is under way: no wait")

		b.takes = time.Hour
		group.Go(func() { require.NoError(t, b.bringOne(t.Context())) })
		synctest.Wait()
		start = time.Now()
		b.takes = 0
		b.bringAll(t, 1)
		require.Equal(t, start.Add(askedWindow), time.Now())
		group.Wait()
	})
}

// Neither the leader's nor another's client takes the others with it.
func TestAClientThatLeavesABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := batches{gathering: newBeats()}
		leading, leave := context.WithCancel(t.Context())
		following, follow := context.WithCancel(t.Context())
		errs := make([]error, 3)
		var group sync.WaitGroup
		for i, ctx := range []context.Context{leading, following, t.Context()} {
			group.Go(func() { errs[i] = b.bringOne(ctx) })
			synctest.Wait()
		}
		leave()
		follow()
		group.Wait()
		require.Equal(t, []error{nil, context.Canceled, nil}, errs)
		require.Equal(t, []int{3}, b.sizes)
	})
}

func TestABatchFailsForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := batches{gathering: newBeats(), err: errors.New("away")}
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { require.ErrorIs(t, b.bringOne(t.Context()), b.err) })
		}
		group.Wait()
		require.Equal(t, []int{3}, b.sizes)
	})
}

// claimed is what a heartbeat says it is, against what is on record.
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

// put adds a node as the claim is about and returns the heartbeat that claims.
func (c claimed) put(t *testing.T, s *Store, host string) *beat {
	t.Helper()
	b := &beat{id: trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: c.incarnation},
		cert: trust.CertFacts{Serial: "of-" + host, Fingerprint: c.shown},
		said: wire.HeartbeatRequest{AgentVersion: "v1", At: time.Now()}}
	var lock *time.Time
	reason := ""
	if c.locked {
		lock, reason = &b.said.At, "test"
	}
	_, err := s.pool.Exec(t.Context(), `INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode,
		lifecycle_class, port, identity_locked_at, identity_lock_reason)
		VALUES ($1, $2, $3, 'cpu-dev', 0, 'r', 'manual', 'persistent', 22, $4, $5)`, b.id.NodeID, host, c.state, lock, reason)
	require.NoError(t, err)
	if c.slot == "" {
		return b
	}
	var retired *time.Time
	if c.slot != slotPending && c.slot != slotCurrent {
		retired = &b.said.At
	}
	_, err = s.pool.Exec(t.Context(), `INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer,
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

// Heartbeats that are stored together are judged by a statement, all others by
// checkIdentity: of the same claim both think the same, but that the statement
// leaves to the other what promotes a certificate or brings a node back.
func TestGatheredHeartbeatsAreJudgedAsAllRequests(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	all := claims()
	beats := make([]*beat, len(all))
	good := 0
	for i, c := range all {
		beats[i] = c.put(t, s, fmt.Sprint("node-", i))
	}
	require.NoError(t, s.storeBeats(ctx, beats))
	for i, b := range beats {
		row, err := s.facts(ctx, b.id.NodeID, b.cert.Serial)
		require.NoError(t, err)
		want := checkIdentity(row, b.id, b.cert) == nil && *row.Slot == slotCurrent && all[i].state != lifecycle.NodeOffline
		require.Equal(t, want, b.stored, "%+v", all[i])
		at, err := s.q.LastHeartbeat(ctx, b.id.NodeID)
		require.NoError(t, err)
		require.Equal(t, want, at != nil, "%+v", all[i])
		if want {
			good++
		}
	}
	require.Equal(t, (len(lifecycle.NodeStates())-2)*3, good, "every state but two, with a fingerprint that does not differ")
}

// goodNode adds a node whose heartbeats are good.
func goodNode(t *testing.T, s *Store, host string) *beat {
	t.Helper()
	return claimed{lifecycle.NodeActive, false, slotCurrent, 1, 1, "a", "a"}.put(t, s, host)
}

func (b *beat) saying(version string) *beat {
	out := *b
	out.said.AgentVersion = version
	return &out
}

// Of two heartbeats of one node the later stands, and speaks for the one before
// if both show the same certificate.
func TestTheLaterHeartbeatOfANodeStands(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	node := goodNode(t, s, "a")
	first, last := node.saying("v1"), node.saying("v2")
	stranger := goodNode(t, s, "b").saying("v1")
	other := *stranger
	other.cert.Serial = "unknown"
	require.NoError(t, s.storeBeats(ctx, []*beat{first, stranger, last, &other}))
	require.True(t, first.stored)
	require.True(t, last.stored)
	require.False(t, other.stored)
	require.False(t, stranger.stored, "another certificate does not speak for it")
	n, err := s.Node(ctx, node.id.NodeID)
	require.NoError(t, err)
	require.Equal(t, "v2", n.AgentVersion)
}

// What the database does not take of one heartbeat leaves the others to go by
// themselves.
func TestABadHeartbeatFailsAlone(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	good, bad, odd := goodNode(t, s, "a"), goodNode(t, s, "b"), goodNode(t, s, "c")
	bad.said.Workloads = []task.Workload{{Name: "a\x00"}}
	odd.said.BootID, odd.said.Phase = "\x00\xff", "x\x00"
	odd.id.NodeID = "no id"
	require.NoError(t, s.storeBeats(ctx, []*beat{good, bad, odd}))
	require.False(t, good.stored)
	errs := make([]error, 3)
	var group sync.WaitGroup
	for i, b := range []*beat{good, bad, odd} {
		group.Go(func() { errs[i] = s.Heartbeat(ctx, b.id, b.cert, b.said) })
	}
	group.Wait()
	require.NoError(t, errs[0])
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(errs[1]))
	require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(errs[2]))
	text := goodNode(t, s, "d")
	text.said.BootID, text.said.Phase = "\x00\xff", "x\x00"
	require.NoError(t, s.storeBeats(ctx, []*beat{good, text}))
	require.True(t, text.stored, "text is mended")
}

// A gathered heartbeat rewrites its rows in place: no index is written.
func TestGatheredHeartbeatsWriteNoIndex(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), openStore(t)
	beats := map[string]*beat{}
	for i := range 8 {
		b := goodNode(t, s, fmt.Sprint("node-", i))
		beats[b.id.NodeID] = b
	}
	p, err := beatParams(beats)
	require.NoError(t, err)
	conn, err := s.pool.Acquire(ctx)
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
	require.Len(t, taken, len(beats))
	require.Equal(t, before+len(beats), inPlace())
}
