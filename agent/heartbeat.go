package agent

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// errChanged means that a poll ended early because the node's workloads or its
// cordon changed.
var errChanged = errors.New("the node changed")

// change makes the next poll carry a heartbeat, and soon ends an open one.
func (a *Agent) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// send sends one poll, with a heartbeat unless a later poll can carry it in time. A
// change ends the poll with errChanged after a pause: changes come in groups, and
// the poll often receives its answer meanwhile. After a failed poll it is unknown
// whether the server has the heartbeat, so the next poll carries one.
func (a *Agent) send(ctx context.Context, api *nodeapi.Client, timeout time.Duration, q wire.PollRequest) (nodeapi.PollResponse, error) {
	select {
	case <-a.changed:
		a.reported = time.Time{}
	default:
	}
	now := a.now()
	if a.reported.IsZero() || now.Sub(a.reported).Abs()+timeout >= wire.HeartbeatInterval {
		if q.Heartbeat = a.heartbeat(ctx); q.Heartbeat != nil {
			q.Heartbeat.Health = a.health.due(now, timeout)
		}
	}
	ctx, end := context.WithCancelCause(ctx)
	changed := false
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-a.changed:
			changed = true
			if wait.Sleep(ctx, a.timing.pause) == nil {
				end(errChanged)
			}
		}
	})
	got, err := api.Poll(ctx, timeout, q)
	end(nil)
	watch.Wait()
	if err != nil && errors.Is(context.Cause(ctx), errChanged) {
		err = errChanged
	}
	withoutHealth := q.Heartbeat != nil && a.health.answered(q.Heartbeat.Health, now, err)
	switch {
	case withoutHealth:
		a.log.Warn("the server refused a heartbeat with a health report; the next one has none", "err", err.Error())
		a.reported = time.Time{}
	case q.Heartbeat != nil && schema.KindOf(err) == schema.KindInvalidRequest:
		a.reported = now // the next poll goes without one, so that a refused heartbeat does not keep tasks from the node
	case err != nil || changed:
		a.reported = time.Time{}
	case q.Heartbeat != nil:
		a.reported = now // not the time of the answer, which may be a minute later
	}
	return got, err
}

// heartbeat returns the node's state with the last known workloads, nil before the
// workload driver's first answer.
func (a *Agent) heartbeat(ctx context.Context) *wire.Heartbeat {
	known := a.workloads.Summary(ctx)
	list, at := known.List(), cmp.Or(known.At, known.FaultSince)
	if at.IsZero() {
		return nil
	}
	if len(list) > wire.MaxWorkloads {
		a.log.Warn("heartbeat without the last workloads", "workloads", len(list), "reported", wire.MaxWorkloads)
	}
	up := host.Uptime("/")
	if up == 0 {
		up = int64(a.now().Sub(a.started).Seconds())
	}
	return &wire.Heartbeat{
		AgentVersion: version.Version(), UptimeSeconds: up, BootID: a.bootID,
		Cordoned: a.cordon.Cordoned(), Workloads: workload.Reportable(list), Phase: wire.PhaseReady, At: at.UTC(), Fault: a.fault,
		Driver: a.conf.WorkloadDriver, DriverFault: text.Printable(known.Fault, wire.MaxFault),
	}
}
