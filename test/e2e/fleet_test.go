package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// fleetTimeout exceeds the longest delay that a misbehaving node causes: a late result
// waits for the end of its lease and for the reclaimer.
const fleetTimeout = 5 * time.Minute

// simulatedFleet is a running gpuaas dev fleet.
type simulatedFleet struct {
	prefix string
	size   int
	cmd    *exec.Cmd
	read   sync.WaitGroup

	mu    sync.Mutex
	lines []string
}

// startFleet starts a fleet with its own prefix and stops it at the end of the test.
func startFleet(t *testing.T, size int, prefix string, args ...string) *simulatedFleet {
	t.Helper()
	all := append([]string{"dev", "fleet", strconv.Itoa(size), "--dir", shared.Dir, "--prefix", prefix, "--region", "region-1",
		"--report-every", "1s"}, args...)
	f := &simulatedFleet{prefix: prefix, size: size, cmd: shared.command(all...)}
	f.start(t)
	return f
}

func (f *simulatedFleet) start(t *testing.T) {
	t.Helper()
	out, err := f.cmd.StdoutPipe()
	require.NoError(t, err)
	f.cmd.Stderr = t.Output()
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill ends the process of the agents, too
	require.NoError(t, f.cmd.Start())
	f.read.Go(func() { f.follow(out) })
	t.Cleanup(func() { f.stop(t) })
}

func (f *simulatedFleet) follow(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f.mu.Lock()
		f.lines = append(f.lines, lines.Text())
		f.mu.Unlock()
	}
}

// stop interrupts the fleet and requires a successful exit.
func (f *simulatedFleet) stop(t *testing.T) {
	t.Helper()
	if f.cmd.ProcessState != nil {
		return
	}
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGINT))
	f.read.Wait()
	err := f.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		require.Zero(t, exit.ExitCode())
	}
	require.NoError(t, err)
}

// kill ends the fleet with SIGKILL.
func (f *simulatedFleet) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL))
	f.read.Wait()
	require.Error(t, f.cmd.Wait())
}

// count returns a number of the latest report; -1 before the first.
func (f *simulatedFleet) count(t *testing.T, name string) int {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lines) == 0 {
		return -1
	}
	m := regexp.MustCompile(`\b` + name + `=(\d+)`).FindStringSubmatch(f.lines[len(f.lines)-1])
	require.NotNil(t, m, f.lines[len(f.lines)-1])
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// nodes are the fleet's, by host name.
func (f *simulatedFleet) nodes(t *testing.T) map[string]wire.NodeView {
	t.Helper()
	out := map[string]wire.NodeView{}
	for _, n := range decode[wire.NodeList](t, ok(t, "node", "list", "-o", "json")).Nodes {
		if strings.HasPrefix(n.Host, f.prefix+"-") {
			out[n.Host] = n
		}
	}
	return out
}

// countNodes counts the nodes for which a condition holds.
func (f *simulatedFleet) countNodes(t *testing.T, cond func(wire.NodeView) bool) (n int) {
	t.Helper()
	for _, v := range f.nodes(t) {
		if cond(v) {
			n++
		}
	}
	return n
}

func (f *simulatedFleet) waitActive(t *testing.T) {
	t.Helper()
	harness.Poll(t, func() bool {
		return f.countNodes(t, func(n wire.NodeView) bool { return n.State == lifecycle.NodeActive && n.Operation == nil }) == f.size
	}, fleetTimeout, time.Second, "all are enrolled")
}

// misbehavingFleet cordons every node of a fleet with every kind of misbehavior. All
// operations complete: cordoning is idempotent, so none needs an operator.
func misbehavingFleet(t *testing.T) {
	t.Helper()
	const size = 20
	prefix := host(t, "mis")
	f := startFleet(t, size, prefix, "--restart-after", "20s",
		"--misbehave", "slow=2,silent=2,duplicate=2,late=2,flapping=2,dies=2")
	f.waitActive(t)

	var wg sync.WaitGroup
	results := make([]result, size)
	for i := range size {
		wg.Go(func() {
			results[i] = run(t, "node", "drain", fmt.Sprintf("%s-%04d", prefix, i+1), "--cordon-only", "--no-wait", "--yes", "--reason", "test")
		})
	}
	wg.Wait()
	for _, r := range results {
		require.Zero(t, r.code, "%v\n%s", r.args, r.stderr)
	}
	harness.Poll(t, func() bool {
		return f.countNodes(t, func(n wire.NodeView) bool { return n.Cordoned && n.Operation == nil }) == size
	}, fleetTimeout, time.Second, "every node is cordoned and free")
	for hostName := range f.nodes(t) {
		op := decode[lifecycleStep](t, ok(t, "op", "show", hostName, "-o", "json")).Operation
		require.Equal(t, lifecycle.ActionDrain, op.Action, hostName)
		require.Equal(t, lifecycle.OperationCompleted, op.Status, hostName)
	}
	require.GreaterOrEqual(t, f.count(t, "offers"), size)
	require.GreaterOrEqual(t, f.count(t, "twice"), 2)
	require.Zero(t, f.count(t, "split"), "a repeated result receives the same response")
	require.Zero(t, f.count(t, "failed"))
}

// restartedFleet: a second run uses the same identities.
func restartedFleet(t *testing.T) {
	t.Helper()
	prefix := host(t, "again")
	first := startFleet(t, 3, prefix)
	first.waitActive(t)
	before := map[string]wire.NodeView{}
	for name := range first.nodes(t) {
		before[name] = show(t, name)
	}
	first.stop(t)

	second := startFleet(t, 3, prefix)
	harness.Poll(t, func() bool { return second.count(t, "enrolled") == 3 }, conditionTimeout, 100*time.Millisecond, "all are accepted")
	for name := range second.nodes(t) {
		n := show(t, name)
		require.Equal(t, before[name].ID, n.ID)
		require.Equal(t, before[name].Identity.Serial, n.Identity.Serial, "no node enrolled twice")
	}
}

// silentNode loses a node while it drains. The task must not run again without a
// decision, so the operation parks. It resumes when the node returns and reports.
func silentNode(t *testing.T) {
	t.Helper()
	prefix := host(t, "lost")
	node := prefix + "-0001"
	// The cordon ends before the first fleet stops; otherwise the second fleet repeats it
	// and becomes silent again.
	args := []string{"--misbehave", "silent=1", "--workloads", "1", "--restart-after", "1h", "--task-time", "1ms"}
	began := func(f *simulatedFleet, what string) {
		harness.Poll(t, func() bool { return f.count(t, "offers") == 1 && f.count(t, "works") == 1 }, fleetTimeout, 100*time.Millisecond, what)
	}
	f := startFleet(t, 1, prefix, args...)
	f.waitActive(t)
	ok(t, "node", "drain", node, "--no-wait", "--yes", "--deadline", "20m", "--reason", "test")
	began(f, "the cordon begins, and the node becomes silent")
	f.stop(t)

	f = startFleet(t, 1, prefix, args...)
	began(f, "the cordon is reported, the drain begins, and the node becomes silent again")
	expireLease(t, newest(t, node, task.WorkloadDrain, task.Running).TaskID)
	triggerReclaim(t)
	harness.Poll(t, func() bool {
		op := show(t, node).Operation
		return op != nil && op.Stuck != nil && op.Stuck.Reason == lifecycle.ReasonTaskLost
	}, fleetTimeout, time.Second, "the drain's task is lost and its operation parks")
	require.Equal(t, 1, f.count(t, "offers"), "a destructive task is not dispatched again automatically")
	f.stop(t)

	startFleet(t, 1, prefix, "--workloads", "1")
	harness.Poll(t, func() bool { return show(t, node).State == lifecycle.NodeDrained }, fleetTimeout, time.Second,
		"the node reports the result, and the operation resumes")
}
