package agent

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// heartbeats tells the server every 30 s, and at once when the workloads or the
// cordon changed, how the node is. A lost heartbeat is not repeated: the next
// one says more.
func (a *Agent) heartbeats(ctx context.Context) {
	tick := time.NewTicker(a.timing.heartbeat)
	defer tick.Stop()
	for {
		a.heartbeat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-a.changed:
		}
	}
}

func (a *Agent) heartbeat(ctx context.Context) {
	list, err := a.workloads.List(ctx)
	if err != nil {
		a.log.Error("workloads cannot be listed", "err", err.Error())
		return
	}
	up := uptime("/")
	if up == 0 {
		up = int64(a.now().Sub(a.started).Seconds())
	}
	err = a.api().heartbeat(ctx, schema.HeartbeatRequest{
		AgentVersion: Version(), UptimeSeconds: up, BootID: a.bootID,
		Cordoned: a.flags.Cordoned(), Workloads: list, Phase: "ready", At: a.now().UTC(),
	})
	switch {
	case err == nil || ctx.Err() != nil:
	case isRemoved(err):
		a.stop(err)
	default:
		a.log.Warn("heartbeat not delivered", "err", err.Error())
	}
}

// change asks for a heartbeat at once; several changes make one.
func (a *Agent) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
