package clusteragent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// unknownPause is how long the agent reports nothing about a node that the control plane does not
	// have, and refusedReport after another error.
	unknownPause  = 10 * time.Minute
	refusedReport = time.Minute
	// sweepEvery is how often the agent looks for Node objects whose machine is gone.
	sweepEvery = time.Minute
	// checkerReady is the checker whose fault a Node object must have before it is deleted.
	checkerReady = "node_ready"
)

// join reports the conditions to the control plane, and deletes the Node objects of nodes that it has
// removed. An error of one node does not stop the others; without a response, the round ends.
func (a *agent) join(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		if err := a.send(ctx, name, a.nodes[name]); err != nil && schema.AsError(err).Reason == unreachable {
			return
		}
	}
	if a.now().Sub(a.swept) < sweepEvery {
		return
	}
	a.swept = a.now()
	thresholds := health.Thresholds(a.checkers)
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		due := a.nodes[name].tracker.Last().Due(thresholds)
		if slices.ContainsFunc(due, func(c health.Condition) bool { return c.Checker == checkerReady }) {
			a.sweep(ctx, name)
		}
	}
}

// send reports a node's conditions if they changed, and otherwise before the control plane counts
// them as unknown. It returns the error for the caller to decide whether to continue.
func (a *agent) send(ctx context.Context, name string, t *tracked) error {
	last, now := t.tracker.Last(), a.now()
	fresh := now.Sub(t.reported.At) < wire.HealthInterval
	if now.Before(t.quiet) || fresh && slices.Equal(statuses(last), statuses(t.reported)) {
		return nil
	}
	err := a.control.report(ctx, name, last)
	switch {
	case err == nil:
		t.reported = last
	case schema.KindOf(err) == schema.KindNotFound:
		t.quiet = now.Add(unknownPause)
		a.log.Info("the control plane has no node with this name", slog.String("node", name))
	default:
		t.quiet = now.Add(refusedReport)
		a.failed(errorReport, "cannot report the conditions of a node", err, slog.String("node", name))
	}
	return err
}

// sweep deletes the Node object of a machine that the control plane has removed or terminated.
func (a *agent) sweep(ctx context.Context, name string) {
	n, err := a.live(ctx, name)
	if err != nil || string(n.UID) != a.nodes[name].UID {
		return // the informer will show it
	}
	node, err := a.control.node(ctx, name)
	if err != nil {
		if schema.KindOf(err) != schema.KindNotFound {
			a.failed(errorReport, "cannot read a node of the control plane", err, slog.String("node", name))
		}
		return
	}
	why := gone(node, name, n.CreationTimestamp.Time)
	if why == "" {
		return
	}
	log := a.log.With(slog.String("node", name), slog.String("why", why))
	t := a.nodes[name]
	if a.monitorOnly {
		if t.brake != why { // once
			a.metrics.acted(name, actionDelete, true)
			log.Warn("would delete the Node object; CIVO_NODE_AGENT_MONITOR_ONLY is true")
		}
		t.brake = why
		return
	}
	a.metrics.acted(name, actionDelete, false)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = a.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: new(n.UID), ResourceVersion: new(n.ResourceVersion)}})
	switch {
	case err == nil:
		log.Warn("deleted the Node object")
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		log.Info("the Node object has changed; it is not deleted")
	default:
		a.metrics.failures.WithLabelValues(name, actionDelete).Inc()
		a.failed(errorNode, "cannot delete a Node object", err, slog.String("node", name))
	}
}

// gone returns why the machine of a Node object, which was created at a time, does not exist, "" if it
// may. A Node object that is younger than the end of the machine belongs to another machine.
func gone(n wire.NodeView, name string, created time.Time) string {
	switch {
	case n.Host != name:
		return ""
	case n.State == lifecycle.NodeRemoved && created.Before(n.StateSince):
		return "the control plane removed the node"
	case n.State == lifecycle.NodeRegistered && n.Instance != nil && n.Instance.State == lifecycle.InstanceTerminated && created.Before(n.Instance.StateSince):
		return "the control plane terminated the machine"
	}
	return ""
}
