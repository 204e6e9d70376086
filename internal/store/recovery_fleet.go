package store

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// readNodes reads the nodes to decide about.
func (r *deciding) readNodes(ctx context.Context) error {
	fresh := wire.StaleHealth.Seconds()
	rows, err := r.tx.NodesToDecide(ctx, refusedFor.Seconds(), r.fleet.Breaker.Probing, fresh)
	if err != nil || len(rows) == 0 {
		return err
	}
	ids := convert(rows, func(n sqlc.NodesToDecideRow) string { return n.NodeID })
	conditions, err := r.tx.ConditionsToDecide(ctx, fresh, ids)
	if err != nil {
		return err
	}
	attempts, err := r.tx.AttemptsToDecide(ctx, ids, recovery.LookBack.Seconds())
	if err != nil {
		return err
	}
	of := map[string][]health.Condition{}
	for _, c := range conditions {
		of[c.NodeID] = append(of[c.NodeID], conditionOf(c))
	}
	tried := map[string][]recovery.Attempt{}
	for _, a := range attempts {
		tried[a.NodeID] = append(tried[a.NodeID], attemptOf(a))
	}
	for _, n := range rows {
		r.nodes[n.NodeID] = n
		v := nodeOf(n, append(of[n.NodeID], silence(n)...), tried[n.NodeID])
		if id := r.busy[n.NodeID]; v.Held == "" && id != "" && !slices.ContainsFunc(v.Attempts, func(a recovery.Attempt) bool { return a.OperationID == id }) {
			v.Held = fmt.Sprintf("operation %s has reserved the node", id) // for another purpose
		}
		r.fleet.Nodes = append(r.fleet.Nodes, v)
	}
	return nil
}

// silence returns the condition of a node without heartbeats: whatever the cause, no agent can report it.
func silence(n sqlc.NodesToDecideRow) []health.Condition {
	if n.SilentAt.Unix() <= 0 {
		return nil
	}
	return []health.Condition{{Checker: health.CheckerHeartbeat, Status: health.Unhealthy, Reason: "Silent", Repair: health.RepairReboot, Since: n.SilentAt.UTC(),
		Samples: math.MaxInt16, Detail: "the node sends no heartbeats"}}
}

// conditionOf returns a condition. The zero time of a fault is year 1 in the database. An unknown
// condition that interrupts a fault keeps the time of the fault.
func conditionOf(c sqlc.ConditionsToDecideRow) health.Condition {
	v := health.Condition{Checker: c.Checker, Component: c.Component, Status: health.Status(c.Status), Reason: c.Reason, Code: c.Code, Repair: c.Repair,
		Detail: c.Detail, Since: c.Since.UTC(), Samples: c.Samples, FaultSamples: c.FaultSamples, UnknownSeconds: c.UnknownSeconds}
	if v.Status == health.Unknown && c.FaultSince.Year() > 1 {
		v.FaultSince = c.FaultSince.UTC()
	}
	return v
}

func nodeOf(n sqlc.NodesToDecideRow, conditions []health.Condition, attempts []recovery.Attempt) recovery.Node {
	v := recovery.Node{NodeID: n.NodeID, Host: n.Host, SKU: n.SKU, Region: n.RegionCode, Rack: n.Rack, Class: string(n.LifecycleClass), GPUs: n.GPUsTotal,
		Creates: n.Creates, State: string(n.State), Held: held(n, attempts), Phase: phaseNamed(n.Phase), Conditions: conditions, Attempts: attempts}
	if n.BootedAt.Unix() > 0 {
		v.BootedAt = n.BootedAt.UTC()
	}
	return v
}

// held returns why an operator or an operation holds the node, "" if none does. The operation of a
// running attempt is the node's own repair, which its attempt shows. An abandoned operation runs nothing
// that the breaker could wait for, so its ID is left out.
func held(n sqlc.NodesToDecideRow, attempts []recovery.Attempt) string {
	for _, a := range attempts {
		if a.Outcome == "" && a.OperationID == n.OperationID {
			return ""
		}
	}
	switch {
	case n.Abandoned:
		return fmt.Sprintf("an abandoned operation (%s) holds the node: gpuaas node rehydrate %s", n.Action, n.Host)
	case n.OperationID != "":
		return fmt.Sprintf("operation %s (%s) holds the node", n.OperationID, n.Action)
	case n.State != lifecycle.NodeActive && n.State != lifecycle.NodeOffline:
		return "the node is " + string(n.State)
	case n.Cordoned:
		return "the node is cordoned"
	case n.Locked:
		return "the identity of the node is locked"
	case n.RefusedLately:
		return n.Refused
	}
	return ""
}
