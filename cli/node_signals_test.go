package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// someSignals are signals of gpu-17, newest first.
func someSignals() []health.Signal {
	made := func(i int, s health.Signal) health.Signal {
		s.SignalID, s.NodeID, s.Host, s.At = "0198f000-0000-7000-8000-0000000000a"+string(rune('0'+i)), nodeID, "gpu-17", start().Add(-time.Duration(i)*time.Minute)
		return s
	}
	return []health.Signal{
		made(1, health.Signal{Type: "health.gpu_xid", Source: health.SourceAgent, Status: health.Unhealthy, Component: "GPU-0\x1b[2J", Reason: "Xid", Code: 79,
			Repair: health.RepairReboot, BootID: "boot-2", Detail: "GPU has fallen off the bus\x1b[2J\n\tforged"}),
		made(2, health.Signal{Type: health.SignalBooted, Source: health.SourceHeartbeat, BootID: "boot-2", Detail: "the boot before was boot-1"}),
		made(3, health.Signal{Type: health.SignalReturned, Source: health.SourceHeartbeat, Detail: "it was silent since 2026-03-01T11:50:00Z"}),
		made(4, health.Signal{Type: health.SignalSilent, Source: health.SourceWatch, Detail: "active; its last heartbeat was at 2026-03-01T11:45:00Z"}),
		made(5, health.Signal{Type: health.SignalQuota, Source: health.SourceProvider, Detail: "libvirt: 0 of 8 GPUs are left"}),
		made(6, health.Signal{Type: signal.Dropped, Source: health.SourceAgent, Detail: "9 signals were dropped: the node caused more than 256 in an hour"}),
	}
}

func TestNodeSignals(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"table": {"node", "signals", "gpu-17", "--limit", "0"}, "wide": {"node", "signals", "gpu-17", "-o", "wide", "--limit", "1"},
		"json": {"node", "signals", "gpu-17", "--type", "instance.silent", "--since", "24h", "-o", "json"},
		"none": {"node", "signals", "gpu-17", "--type", "recovery"}, "bad-status": {"node", "signals", "gpu-17", "--status", "ill"},
		"no-node": {"node", "signals", "gpu-99"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.signals = someSignals()
			h.golden("signals-"+name, args...)
			require.NotContains(t, h.out.String(), "\x1b")
		})
	}
}

// A node is shown with its unhealthy conditions and its newest signals.
func TestNodeShowHealth(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.signals = someSignals()
	n := busy()
	condition := func(checker string, status health.Status) signal.Condition {
		return signal.Condition{Condition: health.Condition{Checker: checker, Status: status, Reason: "R", Since: start().Add(-time.Hour)},
			Source: health.SourceAgent, ReportedAt: start().Add(-time.Minute)}
	}
	fault := condition("gpu_xid", health.Unhealthy)
	fault.Component, fault.Reason, fault.Code, fault.Repair, fault.Detail = "GPU-0", "Xid", 79, health.RepairReboot, "fallen off\x1b[2J\nHealth: forged"
	stale := condition("node_ready", health.Unknown)
	stale.Stale, stale.Source = true, health.SourceCluster
	n.Conditions = []signal.Condition{fault, condition("disk", health.Healthy), condition("ecc", health.Healthy), condition("fan", health.Unknown), stale}
	h.api.nodes = []wire.NodeView{n}
	h.golden("node-show-health", "node", "show", "gpu-17")
	require.NotContains(t, h.out.String(), "\x1b")
}

// A failed read of the signals does not hide the node.
func TestNodeShowWithoutSignals(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.signals = someSignals()
	h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/signals") {
			return nil, context.DeadlineExceeded
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	require.Zero(t, h.run("node", "show", "gpu-17"))
	require.Contains(t, h.err.String(), "warning: its signals are not shown")
	require.Contains(t, h.out.String(), "gpu-17")
}
