package webui

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// cloud is a double of MAAS whose machines never boot, and which can stop responding.
type cloud struct {
	*maastest.Server
	front   *httptest.Server
	silent  atomic.Bool
	waiting atomic.Int32 // requests without a response
}

func openCloud() *cloud {
	size := maastest.Machine{CPUs: 1, MemoryMiB: 512}
	c := &cloud{Server: maastest.New(maastest.Options{Delays: maastest.Delays{Power: 100 * time.Millisecond, Deploy: 100 * time.Millisecond,
		Erase: 100 * time.Millisecond}}, size, size)}
	c.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.silent.Load() {
			c.waiting.Add(1)
			<-r.Context().Done() // until the client ends the request
			return
		}
		c.ServeHTTP(w, r)
	}))
	return c
}

func (c *cloud) close() { c.front.Close(); c.Close() }

// settings make the stack's worker use the double. A worker that is started again needs them, too.
func (c *cloud) settings(dir string) ([]string, error) {
	key := filepath.Join(dir, "maas-key")
	return []string{"MAAS_API_BASE_URL=" + c.front.URL + "/MAAS", "MAAS_API_TOKEN_FILE=" + key, "MAAS_API_TIMEOUT_MS=30000"},
		os.WriteFile(key, []byte(c.Key), 0o600)
}

// hang makes the provider stop responding until respond is called or the test ends.
func (c *cloud) hang(t *testing.T) {
	t.Helper()
	c.waiting.Store(0)
	c.silent.Store(true)
	t.Cleanup(c.respond)
}

func (c *cloud) respond() { c.silent.Store(false) }

func (c *cloud) called(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "the worker waits for the provider", func() bool { return c.waiting.Load() > 0 })
}

// parkHungProvision provisions a node whose provider does not respond.
func parkHungProvision(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "node", "register", host, "--mode", maas.Name, "--sku", "cpu-dev", "--region", "region-1")
	provider.hang(t)
	stack.Run(t, "node", "provision", host, "--no-wait", "--reason", "RMA-4411")
	provider.called(t)
	expire(t, host, "EnsureMachine")
}

// endHungProvision requires that the provision gets its machine. It then waits for an agent, which
// this machine does not have, so it is canceled, which returns the machine.
func endHungProvision(t *testing.T, op wire.StuckOperation) {
	t.Helper()
	stack.Eventually(t, "the provision has its machine", func() bool {
		return inPhase(t, op.Host, lifecycle.PhaseEnroll)
	})
	require.Len(t, provider.Used(), 1)
	stack.Run(t, "op", "cancel", op.Host, "--yes", "--wait", "--reason", "there is no agent")
	require.Empty(t, provider.Used())
	require.Equal(t, lifecycle.NodeRegistered, stack.Node(t, op.Host).State)
}

// parkHungTermination terminates the machine of a canceled provision, whose return was skipped. Until the
// termination parks, it is not listed, and its page says what it waits for.
func parkHungTermination(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "node", "register", host, "--mode", maas.Name, "--sku", "cpu-dev", "--region", "region-1")
	stack.Run(t, "node", "provision", host, "--no-wait", "--reason", "RMA-4411")
	stack.Eventually(t, "the machine exists", func() bool { return inPhase(t, host, lifecycle.PhaseEnroll) })
	provider.hang(t)
	stack.Run(t, "op", "cancel", host, "--yes", "--reason", "test")
	expire(t, host, "ReturnMachine")
	requireEverywhere(t, parked(t, host, lifecycle.ReasonProviderSilent))
	stack.Run(t, "op", "skip", host, "--yes", "--reason", "test")
	stack.Eventually(t, "the provision ends", func() bool { return operationOf(t, host).Status == lifecycle.OperationCanceled })
	stack.Run(t, "node", "terminate", host, "--yes", "--force", "--no-wait", "--reason", "RMA-4411")
	pending(t, host, "TearDownMachine")
	op := operationOf(t, host)
	require.Equal(t, []any{lifecycle.OperationRunning, lifecycle.PhaseTeardown}, []any{op.Status, op.Phases[0].Name})
	require.NotContains(t, stack.Run(t, "stuck"), host)
	require.Equal(t, string(lifecycle.AttentionNone), attributesOf(t, op.WorkflowID, op.RunID)[lifecycle.AttrAttention])
	p := open(t, webURL(op.WorkflowID, op.RunID))
	p.metadata(webURL(op.WorkflowID, op.RunID), op.Action, host)
	p.sees("Waiting on: provider. Parks at")
	p.Close()
	expire(t, host, "TearDownMachine")
}

func endHungTermination(t *testing.T, op wire.StuckOperation) {
	t.Helper()
	ended(t, op.Host)
	require.Empty(t, provider.Used())
	require.Equal(t, lifecycle.NodeRegistered, stack.Node(t, op.Host).State)
}
