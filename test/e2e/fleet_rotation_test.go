package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

var (
	rotationNodes = flag.Int("rotation-nodes", 0, "size of the fleet of TestRotationsOfAFleet, 0 skips it")
	rotationKinds = flag.String("rotation-kinds", "task-key,set-root,node-ca", "the rotations of TestRotationsOfAFleet")
)

// phaseTimeout bounds a phase of a rotation, in which 1,000 nodes get a task each, on a
// machine whose processes are killed meanwhile.
const phaseTimeout = 20 * time.Minute

// TestRotationsOfAFleet rotates everything that nodes trust while operations run and one node
// in twenty is off: each rotation is rolled back from every gate, and then completed while each
// process of the stack is killed once. In the end all nodes that were on have the identity of
// their last poll accepted, all operations have completed, and the nodes that were off return
// automatically.
func TestRotationsOfAFleet(t *testing.T) {
	if *rotationNodes == 0 {
		t.Skip("takes up to an hour: run it with -args -rotation-nodes N")
	}
	r := &rotatedFleet{prefix: host(t, "rot"), size: *rotationNodes, off: host(t, "off"), offSize: max(1, *rotationNodes/20)}
	r.on = startFleet(t, r.size-r.offSize, r.prefix)
	away := startFleet(t, r.offSize, r.off)
	r.on.waitActive(t)
	away.waitActive(t)
	away.stop(t)
	for _, n := range away.nodes(t) {
		r.away = append(r.away, "--node", n.ID)
	}
	stop := r.work(t)

	kinds := strings.Split(*rotationKinds, ",")
	for _, k := range kinds {
		require.Contains(t, rotation.Kinds(), rotation.Kind(k))
	}
	victims := []string{"worker", "api", "vault", "postgres", "temporal", ""}
	for i, kind := range rotation.Kinds() {
		if !slices.Contains(kinds, string(kind)) {
			continue
		}
		for _, gate := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace} {
			r.begin(t, kind)
			r.reaches(t, gate)
			ok(t, "rotate", "rollback", "--reason", "test")
			r.ends(t, rotation.RolledBack)
		}
		r.begin(t, kind)
		r.kill(t, victims[2*i])
		r.reaches(t, rotation.Activate)
		r.kill(t, victims[2*i+1])
		r.reaches(t, rotation.Grace)
		ok(t, "rotate", "approve", "--reason", "test")
		r.ends(t, rotation.Completed)
	}
	stop()

	r.on.waitActive(t)
	eventually(t, "all nodes poll", func() bool { return r.on.count(t, "polling") >= r.on.size })
	startFleet(t, r.offSize, r.off).waitActive(t)
	for _, n := range decode[wire.NodeList](t, ok(t, "node", "list", "-o", "json")).Nodes {
		require.Nil(t, n.IdentityLock, n.Host)
	}
	ok(t, "audit", "--verify")
	t.Logf("%d operations on %d nodes, %d of them off", r.operations.Load(), r.size, r.offSize)
}

// rotatedFleet are two fleets, of which one is off, under rotations.
type rotatedFleet struct {
	prefix, off   string
	size, offSize int
	on            *simulatedFleet
	away          []string // waives the nodes that are off
	operations    atomic.Int64
}

// work cordons and uncordons nodes, one after the other, until it is stopped.
func (r *rotatedFleet) work(t *testing.T) (stop func()) {
	t.Helper()
	hosts := slices.Sorted(maps.Keys(r.on.nodes(t)))
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			h := hosts[i%len(hosts)]
			r.operate(t, h, true, "node", "drain", h, "--cordon-only", "--yes", "--reason", "test")
			r.operate(t, h, false, "node", "uncordon", h, "--reason", "test")
		}
	})
	return func() { cancel(); done.Wait() }
}

// operate runs an operation until the node is cordoned or is not. While a process is down, the
// command is refused or ends before its operation.
func (r *rotatedFleet) operate(t *testing.T, nodeHost string, cordoned bool, args ...string) {
	t.Helper()
	harness.Poll(t, func() bool {
		_ = run(t, append(args, "--wait")...)
		res := run(t, "node", "show", nodeHost, "-o", "json")
		if res.code != 0 {
			return false
		}
		n := decode[wire.NodeView](t, res)
		return n.Operation == nil && n.Cordoned == cordoned
	}, phaseTimeout, time.Second, "an operation of "+nodeHost)
	r.operations.Add(1)
}

func (r *rotatedFleet) begin(t *testing.T, k rotation.Kind) {
	t.Helper()
	ok(t, "rotate", string(k), "--reason", "test", "--grace", "0s")
	ok(t, append([]string{"rotate", "waive", "--reason", "test"}, r.away...)...)
}

// reaches waits for a phase. No node that is on is waived.
func (r *rotatedFleet) reaches(t *testing.T, phase rotation.Phase) {
	t.Helper()
	r.poll(t, fmt.Sprintf("phase %s", phase), func(v rotation.View) bool { return v.Phase == phase })
}

func (r *rotatedFleet) ends(t *testing.T, o rotation.Outcome) {
	t.Helper()
	r.poll(t, string(o), func(v rotation.View) bool { return v.Outcome == o })
}

func (r *rotatedFleet) poll(t *testing.T, what string, cond func(rotation.View) bool) {
	t.Helper()
	began := time.Now()
	harness.Poll(t, func() bool {
		res := run(t, "rotate", "show", "-o", "json")
		return res.code == 0 && cond(decode[rotation.View](t, res))
	}, phaseTimeout, 2*time.Second, what)
	t.Logf("%s after %s", what, time.Since(began).Round(time.Second))
}

// kill kills a part of the stack, or the fleet, with SIGKILL and starts it again.
func (r *rotatedFleet) kill(t *testing.T, part string) {
	t.Helper()
	if part != "" {
		kill(t, part, "")
		ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
		return
	}
	r.on.kill(t)
	r.on = startFleet(t, r.size-r.offSize, r.prefix)
}
