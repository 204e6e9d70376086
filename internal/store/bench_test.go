package store_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// BenchmarkTask measures the CPU of Postgres for the statements of a task, and of an
// idle poll. All calls use one connection, so the times are those of its backend.
func BenchmarkTask(b *testing.B) {
	e := openWith(b, 1)
	c, id, cert := e.enroll()
	f := e.claim(c.NodeID, lifecycle.ActionDrain).Fence
	pid := e.number("SELECT pid FROM pg_stat_activity WHERE application_name = 'gpuaas' AND datname = current_database()")
	cpu := func() float64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		require.NoError(b, err)
		ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		require.NoError(b, err)
		return ns / 1000
	}
	spent := map[string]float64{}
	timed := func(name string, call func() error) {
		before := cpu()
		require.NoError(b, call())
		spent[name] += cpu() - before
	}
	envelope := []byte(`{"payload":"` + strings.Repeat("QUJD", 500) + `"}`)
	n := 0
	for b.Loop() {
		n++
		t := spec(f, schema.NewID(), task.NodeProbe)
		row, err := e.Prepare(b.Context(), t, taskOwner(t.Step))
		require.NoError(b, err)
		timed("enqueue", func() error { return e.Enqueue(b.Context(), t, taskOwner(t.Step), row, envelope) })
		timed("dispatch", func() error {
			_, err := e.NextTask(b.Context(), c, wire.PollRequest{AgentSession: "bench"}, time.Minute, nil)
			return err
		})
		timed("result", func() error {
			_, err := e.Result(b.Context(), c, row.TaskID, succeeded(1, strings.Repeat("x", 384)))
			return err
		})
		timed("authenticate", func() error { _, err := e.Authenticate(b.Context(), id, cert); return err })
		timed("heartbeat", func() error {
			return e.Heartbeat(b.Context(), c, wire.Heartbeat{AgentVersion: "v1", BootID: "b", UptimeSeconds: int64(n), At: time.Now()})
		})
	}
	for name, us := range spent {
		b.ReportMetric(us/float64(n), name+"-pg-µs/op")
	}
}
