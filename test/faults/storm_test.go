package faults_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	faulty "github.com/gpuaas/gpuaas/deploy/dev/simulate"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	recorded "github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
)

var stormFlag = flag.Int("storm", 60, "number of simulated nodes in the storm, in racks of 10")

const (
	stormRack = 10
	// stormSpan is how long the faults take to reach all racks that fail.
	stormSpan = time.Minute
)

// stormy is a stack with a fleet whose nodes fail rack by rack.
type stormy struct {
	*devstack.Stack
	size   int
	faults string // the faults file of the fleet
}

// TestStorm: on a real stack, 30 % of a fleet of enrolled nodes, whole racks, fail within a minute while
// the policy is armed. No more repairs ever start than the budget allows, one row of gpuaas stuck says
// what happened and what to do, and when the faults end, the nodes are healthy and the breaker closes
// automatically.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a stack; not under -short")
	}
	s := newStormy(t, *stormFlag)
	budget := s.arm(t)
	s.cure(t)
	before := s.started(t)
	bad := s.fail(t)
	s.await(t, "the breaker opens", func() bool { return !s.status(t).Breaker.OpenSince.IsZero() })
	s.await(t, "every node that failed is decided about", func() bool {
		return s.number(t, "SELECT count(*) FROM recovery_states s JOIN nodes n USING (node_id) WHERE n.labels ->> 'rack' <= "+
			fmt.Sprintf("'storm-r%03d'", bad/stormRack)) >= bad-budget
	})
	s.rounds(t, 3) // with the breaker open and the faults still there
	lines := s.stuck(t)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0].Message, "became unhealthy within")
	require.Contains(t, lines[0].Message, "storm-r001")
	require.Contains(t, lines[0].Next, "gpuaas recovery breaker close --reason")
	t.Logf("gpuaas stuck: %s; next: %s", lines[0].Message, lines[0].Next)
	require.LessOrEqual(t, s.started(t)-before, budget, "repairs that started")

	s.write(t, 0, 0)
	s.calm(t)
	s.await(t, "the breaker closes", func() bool { return s.status(t).Breaker.OpenSince.IsZero() })
	s.rounds(t, 2)
	require.LessOrEqual(t, s.started(t)-before, budget, "repairs that started")
	require.Equal(t, s.size, s.number(t, "SELECT count(*) FROM nodes WHERE state = 'active' AND NOT cordoned"))
	require.Empty(t, s.stuck(t))
	t.Logf("storm: %d of %d nodes in %d racks failed within %s; %d repairs started, the budget is %d; breaker: %s",
		bad, s.size, bad/stormRack, stormSpan, s.started(t)-before, budget, s.status(t).Breaker.Why)
}

// newStormy starts a stack and its fleet, and waits until all nodes are enrolled.
func newStormy(t *testing.T, size int) *stormy {
	t.Helper()
	bin, err := filepath.Abs("../../bin/gpuaas")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "gpuaas-storm-") //nolint:usetesting // Postgres runs as another user, which cannot enter t.TempDir
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	up, err := devstack.Up(t.Context(), bin, filepath.Join(dir, "dev"))
	t.Cleanup(func() {
		require.NoError(t, up.Down())
		require.NoError(t, os.RemoveAll(dir))
	})
	require.NoError(t, err)
	s := &stormy{Stack: up, size: size, faults: filepath.Join(dir, "faults.json")}
	s.write(t, 0, 0)
	fleet := up.Command(context.WithoutCancel(t.Context()), "dev", "fleet", fmt.Sprint(size), "--dir", up.Dir, "--region", "local",
		"--prefix", "storm", "--rack-size", fmt.Sprint(stormRack), "--faults", s.faults, "--report-every", "30s")
	fleet.Stdout, fleet.Stderr = t.Output(), t.Output()
	require.NoError(t, fleet.Start())
	t.Cleanup(func() {
		require.NoError(t, fleet.Process.Signal(syscall.SIGINT))
		require.NoError(t, fleet.Wait())
	})
	harness.Poll(t, func() bool {
		return s.number(t, "SELECT count(*) FROM nodes n WHERE state = 'active' AND EXISTS (SELECT FROM health_reports r WHERE r.node_id = n.node_id)") == size
	}, 5*time.Minute+time.Duration(size)*3*time.Second, 2*time.Second, "all nodes are enrolled and report their health")
	return s
}

// arm stores an armed policy: the default one, without the times that it waits. It returns the budget of
// the fleet.
func (s *stormy) arm(t *testing.T) int {
	t.Helper()
	p := recovery.Default()
	p.Mode, p.Samples, p.BootGrace, p.Breaker.HalfOpenAfter = recovery.ModeArmed, 1, 0, recovery.Duration(time.Minute)
	raw, err := json.Marshal(p)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	s.run(t, "recovery", "policy", "set", "--file", file, "--reason", "test")
	limit, limited := p.Limit(recovery.Size{Scope: recovery.ScopeFleet, Nodes: s.size})
	require.True(t, limited)
	return limit
}

// cure lets one node fail, and waits for its repair: the policy is armed.
func (s *stormy) cure(t *testing.T) {
	t.Helper()
	s.write(t, s.size-1, s.size)
	s.await(t, "the repair of one node", func() bool {
		return s.number(t, "SELECT count(*) FROM recovery_attempts WHERE outcome = 'cured'") == 1
	})
	s.write(t, 0, 0)
	s.calm(t)
}

// fail lets 30 % of the nodes fail, rack by rack, within stormSpan.
func (s *stormy) fail(t *testing.T) (failed int) {
	t.Helper()
	racks := s.size * 3 / 10 / stormRack
	every := time.NewTicker(stormSpan / time.Duration(racks))
	defer every.Stop()
	for n := range racks {
		s.write(t, 0, (n+1)*stormRack)
		<-every.C
	}
	return racks * stormRack
}

// calm waits until no node has a fault and no repair runs.
func (s *stormy) calm(t *testing.T) {
	t.Helper()
	s.await(t, "the nodes are healthy", func() bool {
		return s.number(t, "SELECT count(*) FROM conditions WHERE status = 'unhealthy'") == 0 && len(s.status(t).Nodes) == 0
	})
	s.await(t, "the repairs end and release the budget", func() bool {
		return s.number(t, "SELECT count(*) FROM budget_reservations") == 0 &&
			s.number(t, "SELECT count(*) FROM operations WHERE ended_at IS NULL") == 0
	})
}

// write stores faults of the nodes from a number to another one, which a restart ends.
func (s *stormy) write(t *testing.T, from, to int) {
	t.Helper()
	f := faulty.Faults{RebootSeconds: 2, Faults: []faulty.Fault{}}
	if to > from {
		fault := faulty.Fault{Condition: health.Condition{Checker: "host_kernel", Reason: "LinkDown", Repair: health.RepairReboot,
			Detail: "the link of eth0 is down"}}
		for n := from; n < to; n++ {
			fault.Hosts = append(fault.Hosts, fmt.Sprintf("storm-%04d", n+1))
		}
		f.Faults = append(f.Faults, fault)
	}
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.faults+".tmp", raw, 0o600))
	require.NoError(t, os.Rename(s.faults+".tmp", s.faults))
}

// run runs the CLI and returns its output.
func (s *stormy) run(t *testing.T, args ...string) []byte {
	t.Helper()
	c := s.Command(t.Context(), args...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(t, err, "%v: %s", args, stderr.String())
	return out
}

func (s *stormy) status(t *testing.T) (st recorded.Status) {
	t.Helper()
	require.NoError(t, json.Unmarshal(s.run(t, "recovery", "status", "-o", "json"), &st))
	return st
}

// stuck is what gpuaas stuck says about health recovery, one fault per line.
func (s *stormy) stuck(t *testing.T) (faults []wire.ControlPlaneFault) {
	t.Helper()
	var list wire.StuckList
	require.NoError(t, json.Unmarshal(s.run(t, "stuck", "-o", "json"), &list))
	return slices.DeleteFunc(list.Faults, func(f wire.ControlPlaneFault) bool { return f.Component != "health-recovery" })
}

// started is how many repairs ever started.
func (s *stormy) started(t *testing.T) int {
	t.Helper()
	return s.number(t, "SELECT count(*) FROM operations WHERE action = 'recover'")
}

// rounds waits for n rounds of health recovery.
func (s *stormy) rounds(t *testing.T, n int) {
	t.Helper()
	const sql = "SELECT round FROM recovery_breaker"
	from := s.number(t, sql)
	s.await(t, "rounds", func() bool { return s.number(t, sql) >= from+n })
}

func (s *stormy) number(t *testing.T, sql string) (n int) {
	t.Helper()
	harness.Query(t, s.Stack, func(r pgx.Rows) { require.NoError(t, r.Scan(&n)) }, sql)
	return n
}

func (s *stormy) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	harness.Poll(t, cond, 10*time.Minute, 2*time.Second, what)
}
