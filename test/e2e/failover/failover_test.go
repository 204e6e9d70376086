// Package failover tests a stack whose Postgres fails over to a synchronous standby. It is a
// suite of its own, because it needs a stack with another database than the other suites.
package failover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

const (
	nodes = 12
	// every is how often a condition is checked that starts a process.
	every = 500 * time.Millisecond
	// endTimeout bounds the end of the operations: those that parked are retried after a minute.
	endTimeout = 10 * time.Minute
)

// world is a stack on a pair of Postgres servers.
type world struct {
	*stack.Stack
	t    *testing.T
	pair *pgtest.Pair
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a stack")
	}
	bin, err := filepath.Abs("../../../bin/gpuaas")
	require.NoError(t, err)
	w := &world{t: t, pair: pgtest.NewPair(t, func(context.Context, string) error { return nil })} // setup migrates it
	t.Setenv("GPUAAS_DATABASE_URL", w.pair.URL())
	w.Stack, err = stack.Up(t.Context(), bin, filepath.Join(t.TempDir(), "dev"))
	t.Cleanup(func() { require.NoError(t, w.Down()) })
	require.NoError(t, err)
	return w
}

// run runs a command of the CLI, and returns its output.
func (w *world) run(args ...string) ([]byte, error) {
	out, err := w.Command(w.t.Context(), args...).Output()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		err = fmt.Errorf("%v: %w: %s", args, err, exit.Stderr)
	}
	return out, err
}

// fleet runs simulated nodes until the test ends, and waits until all are active.
func (w *world) fleet() {
	w.t.Helper()
	cmd := w.Command(context.Background(), "dev", "fleet", fmt.Sprint(nodes), "--dir", w.Dir, "--prefix", "fo", "--region", "region-1",
		"--task-time", "1s..4s")
	cmd.Stderr = w.t.Output()
	require.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	harness.Poll(w.t, func() bool {
		out, err := w.run("node", "list", "-o", "json")
		var list wire.NodeList
		if err != nil || json.Unmarshal(out, &list) != nil {
			return false
		}
		active := 0
		for _, n := range list.Nodes {
			if n.State == lifecycle.NodeActive && n.Operation == nil {
				active++
			}
		}
		return active == nodes
	}, endTimeout, every, "all nodes are active")
}

// drain starts a drain of each node at the same time, and returns the operations that the API
// accepted, by ID.
func (w *world) drain(reported func()) (accepted func() map[string]bool) {
	var mu sync.Mutex
	ids := map[string]bool{}
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() {
			out, err := w.run("node", "drain", fmt.Sprintf("fo-%04d", i+1), "--no-wait", "--yes", "--reason", "failover", "-o", "json")
			var response wire.LifecycleResponse
			if err != nil || json.Unmarshal(out, &response) != nil {
				return // not accepted, or not known to be: nothing was promised
			}
			mu.Lock()
			ids[response.Operation.OperationID] = true
			mu.Unlock()
			reported()
		})
	}
	return func() map[string]bool {
		all.Wait()
		return ids
	}
}

// The primary is killed while operations start and run, and the standby is promoted. The API and
// the worker find the new primary without a restart. Every operation that was accepted is on
// record there and completes without a decision, and the audit trail is whole.
func TestFailover(t *testing.T) {
	w := newWorld(t)
	w.fleet()
	some := make(chan struct{}, nodes)
	accepted := w.drain(func() { some <- struct{}{} })
	for range 3 {
		harness.Receive(t, "an accepted operation", some)
	}
	w.pair.Primary.Kill()
	api, worker := w.metrics("api"), w.metrics("worker")
	harness.Poll(t, func() bool { return status(api) == http.StatusServiceUnavailable }, endTimeout, every, "the API is not ready")
	w.pair.Standby.Promote()
	for _, url := range []string{api, worker} {
		harness.Poll(t, func() bool { return status(url) == http.StatusOK }, endTimeout, every, url+" is ready again")
	}
	ids := accepted()
	require.GreaterOrEqual(t, len(ids), 3)
	harness.Poll(t, func() bool { return w.completed(ids) == len(ids) }, endTimeout, every, "all accepted operations complete")
	out, err := w.run("audit", "--verify")
	require.NoError(t, err, string(out))
}

// completed counts those of the operations that the promoted server has as completed. All of them
// must be on record.
func (w *world) completed(ids map[string]bool) (n int) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.pair.Standby.URL())
	require.NoError(w.t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) }() // it was only read
	for id := range ids {
		var state lifecycle.OperationState
		require.NoError(w.t, conn.QueryRow(w.t.Context(), "SELECT status FROM operations WHERE operation_id = $1", id).Scan(&state), id)
		if state == lifecycle.OperationCompleted {
			n++
		}
	}
	return n
}

// metrics returns the readiness check on the metrics listener of a part.
func (w *world) metrics(part string) string {
	w.t.Helper()
	parts, err := w.Parts(w.t.Context())
	require.NoError(w.t, err)
	log, err := os.ReadFile(parts[part].Log)
	require.NoError(w.t, err)
	for line := range strings.Lines(string(log)) {
		var said struct {
			Msg     string `json:"msg"`
			Metrics string `json:"metrics"`
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Metrics != "" {
			return "http://" + said.Metrics + "/readyz"
		}
	}
	w.t.Fatalf("the log of %s does not name its metrics listener", part)
	return ""
}

func status(url string) int {
	res, err := http.Get(url)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}
