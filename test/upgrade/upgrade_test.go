package upgrade

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/migrations"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// operations is the number of operations that are open when a version is replaced.
var operations = flag.Int("operations", 200, "number of operations in flight")

// shares of the operations. The rest begin, run and end all the time.
const (
	parkedShare    = 3  // one in three is parked at a switch
	reissueShare   = 20 // one in twenty waits for a recovery bundle to be used
	enrollingShare = 20 // one in twenty waits for a node to enroll
	marginShare    = 10 // one in ten more is open, because operations end between two looks
)

// world is a run of the test.
type world struct {
	t          *testing.T
	old, new   release
	c          *control
	fleet      *fleet
	people     *operators
	parked     []string // operations that wait for a decision
	unfinished []string // reissues and enrollments, which wait for their nodes until they are canceled
	earlier    int      // operations before the test's own
	switches   []*versionSwitch
	executed   executions
}

// versionSwitch is one replacement of the version of the control plane.
type versionSwitch struct {
	to string
	// promoted is when the workers of the version to began to receive work.
	promoted time.Time
	took     time.Duration
	// first is the number of open operations at the beginning, inFlight are those at the promotion, and last
	// is the number of inFlight that were open at the end.
	first, last int
	inFlight    []openOperation
	// crossed is the number of runs that the version to continued after the other one.
	crossed int
}

// TestUpgradeUnderLoad upgrades the control plane from the previous version to this one, rolls it
// back with the new schema, and upgrades it again, by the steps of docs/upgrade.md. The agents stay at
// the previous version. Operations of all kinds run in the meantime. Each ends once, as its requests
// say, and no node executes a task twice.
func TestUpgradeUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the previous version and runs it")
	}
	w := newWorld(t)
	w.begin()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working errgroup.Group
	working.Go(func() error { return w.people.work(ctx) })

	for i, to := range []release{w.new, w.old, w.new} {
		w.park()
		w.replace(to, i == 0)
		w.decide(i)
	}
	stop()
	require.NoError(t, working.Wait())
	w.end()
	w.check()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, new: current(t)}
	w.old = previous(t, w.new.bin)
	require.NotEqual(t, w.old.name, w.new.name, "both versions have the same name")
	w.c = newControl(t, w.old)
	w.people = newOperators(t, w.c, *operations+max(2, *operations/marginShare))
	w.fleet = startFleet(t, w.c, w.old, w.size())
	harness.Poll(t, func() bool {
		return w.people.number("SELECT count(*) FROM nodes WHERE state = 'active'") == w.size() && w.people.open() == 0
	}, 2*budget, every, "the fleet is enrolled")
	require.Equal(t, oldSchema(t), w.schema())
	require.Less(t, w.schema(), int(migrations.Latest()), "the upgrade changes the schema")
	w.earlier = w.people.number("SELECT count(*) FROM operations")
	return w
}

// size is the number of nodes of the fleet: more than the operations of the test, because some nodes
// are between two operations.
func (w *world) size() int { return *operations + *operations/5 + 1 }

func (w *world) schema() int { return w.people.number("SELECT max(version_id) FROM goose_db_version") }

// oldSchema is the number of the newest migration of the previous version.
func oldSchema(t *testing.T) (latest int) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(filepath.Join("..", "..", ".cache", "upgrade", previousCommit(t), "src", "schema", "migrations")), "*.sql")
	require.NoError(t, err)
	for _, file := range files {
		number, _, _ := strings.Cut(file, "_")
		n, err := strconv.Atoi(number)
		require.NoError(t, err)
		latest = max(latest, n)
	}
	return latest
}

// begin starts operations that wait for their nodes: reissues of nodes of the fleet, and enrollments of
// other nodes, which have no agent.
func (w *world) begin() {
	w.t.Helper()
	ctx := w.t.Context()
	for i := range max(1, *operations/reissueShare) {
		w.people.start(ctx, fmt.Sprintf("%s-%04d", prefix, i+1), lifecycle.ActionReissueEnrollment, lifecycle.Options{})
	}
	for i := range max(1, *operations/enrollingShare) {
		host := fmt.Sprintf("waits-%04d", i+1)
		require.True(w.t, w.people.post(ctx, "nodes", wire.RegisterNodeRequest{Host: host, SKU: "cpu-dev", RegionCode: "region-1"}, nil))
		w.people.start(ctx, host, lifecycle.ActionEnroll, lifecycle.Options{})
	}
	require.Empty(w.t, w.people.refused)
	for id := range w.people.started {
		w.unfinished = append(w.unfinished, id)
	}
}

// park cancels tasks, so that their operations wait for a decision.
func (w *world) park() {
	w.t.Helper()
	w.parked = w.people.park(w.t.Context(), max(2, *operations/parkedShare))
}

// inFlight waits until enough operations are open, and returns them.
func (w *world) inFlight() (open []openOperation) {
	w.t.Helper()
	harness.Poll(w.t, func() bool {
		open = w.people.opened()
		return len(open) >= *operations
	}, budget, every, "operations in flight")
	return open
}

// replace replaces the version of the control plane, as docs/upgrade.md says. The first time, it
// migrates the database.
func (w *world) replace(to release, migrate bool) {
	w.t.Helper()
	ctx := w.t.Context()
	s := &versionSwitch{to: to.name, first: len(w.inFlight())}
	begun := time.Now()
	w.switches = append(w.switches, s)
	to.run(ctx, w.t, w.c.stack.Env, "admin", "replay", "--all-open")
	if migrate {
		to.run(ctx, w.t, w.c.setupEnv(), "admin", "setup")
		w.c.requireReady("with the schema of the next version")
	}
	w.c.replaceAPIs(to)
	w.c.replaceWorkers(ctx, to, func() { s.inFlight, s.promoted = w.inFlight(), time.Now() })
	w.c.requireReady("after the switch")
	require.Equal(w.t, int(migrations.Latest()), w.schema(), "a rollback leaves the schema")
	s.took, s.last = time.Since(begun), w.people.stillOpen(s.inFlight)
	w.t.Logf("switched to %s with %d operations in flight in %s", to.name, len(s.inFlight), s.took.Round(time.Second))
}

// decide decides about the parked operations: it repeats most and cancels the others.
func (w *world) decide(round int) {
	w.t.Helper()
	for i, id := range w.parked {
		d := lifecycle.DecisionRetry
		if i%3 == round {
			d = lifecycle.DecisionCancel
		}
		w.people.decide(w.t.Context(), id, d)
	}
}

// end cancels the operations that wait for their nodes, and waits until no operation is open.
func (w *world) end() {
	w.t.Helper()
	for _, id := range w.unfinished {
		w.people.decide(w.t.Context(), id, lifecycle.DecisionCancel)
	}
	harness.Poll(w.t, func() bool { return w.people.open() == 0 }, 2*budget, every, "all operations end")
	w.fleet.stop(w.t)
	w.t.Logf("requests sent again: %d; rejected: %v", w.people.repeated, w.people.refused)
	require.Empty(w.t, slices.DeleteFunc(w.refusals(), conflicts), "rejected requests")
}

func (w *world) refusals() (all []string) {
	for why := range w.people.refused {
		all = append(all, why)
	}
	return all
}

// conflicts reports whether a request was rejected for the state of its node: the operation before is
// about to end, the node was provisioned in an earlier turn, or the task to cancel has just ended.
func conflicts(why string) bool {
	return slices.ContainsFunc([]string{"operation_in_progress", "already_provisioned", `"reason":"task_over"`}, func(reason string) bool {
		return strings.Contains(why, reason)
	})
}
