package agent

import (
	"context"
	"fmt"
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
	if a.keeper.silent(a.now()) {
		return
	}
	err := a.beat(ctx, a.api())
	switch {
	case err == nil || ctx.Err() != nil:
	case isRemoved(err):
		a.stop(err)
	default:
		a.log.Warn("heartbeat not delivered", "err", err.Error())
	}
}

// beat delivers one heartbeat: an authenticated call that has no effect on the
// node's work.
func (a *Agent) beat(ctx context.Context, api *client) error {
	list, err := a.workloads.List(ctx)
	if err != nil {
		return fmt.Errorf("listing workloads: %w", err)
	}
	up := uptime("/")
	if up == 0 {
		up = int64(a.now().Sub(a.started).Seconds())
	}
	return api.heartbeat(ctx, schema.HeartbeatRequest{
		AgentVersion: Version(), UptimeSeconds: up, BootID: a.bootID,
		Cordoned: a.flags.Cordoned(), Workloads: list, Phase: "ready", At: a.now().UTC(),
	})
}

// change asks for a heartbeat at once; several changes make one.
func (a *Agent) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
