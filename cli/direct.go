package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// worksDirectly is the annotation of the commands that work with --direct.
const worksDirectly = "direct"

func directly(c *cobra.Command) { c.Annotations = map[string]string{worksDirectly: "true"} }

// directCommands returns the paths of the commands that work with --direct.
func directCommands(c *cobra.Command) (paths []string) {
	if c.Annotations[worksDirectly] != "" {
		paths = append(paths, c.CommandPath())
	}
	for _, sub := range c.Commands() {
		paths = append(paths, directCommands(sub)...)
	}
	return paths
}

// useDirect rejects --direct for a command that would ignore it. For the others it
// makes the commands in the output have --direct too, with the Temporal of this one.
func (e *env) useDirect(c *cobra.Command) error {
	if !e.flags.direct {
		return nil
	}
	paths, prefix := directCommands(c.Root()), c.Root().Name()
	if c.Annotations[worksDirectly] == "" {
		return usagef(c.CommandPath(), "%s needs the admin API and does not work with --direct; these commands do: %s",
			c.CommandPath(), strings.ReplaceAll(strings.Join(paths, ", "), prefix+" ", ""))
	}
	flags := []string{prefix, "--direct"}
	for _, name := range []string{"address", "namespace"} {
		if f := c.Flag(name); f.Changed {
			flags = append(flags, "--"+name, f.Value.String())
		}
	}
	var pairs []string
	for _, path := range paths {
		pairs = append(pairs, path, strings.Join(flags, " ")+strings.TrimPrefix(path, prefix))
	}
	e.commands = strings.NewReplacer(pairs...)
	return nil
}

// apiProbeLimit bounds the wait for the admin API, which may be stopped.
const apiProbeLimit = 2 * time.Second

// statusBudget bounds a query to Temporal: without a worker it does not end.
const statusBudget = 3 * time.Second

// directControl uses Temporal alone: the break-glass mode. The audit trail then
// names the actor that this machine asserts, and the interface temporal.
type directControl struct {
	env *env
	lc  Lifecycle
}

// viaTemporal is the interface that the audit trail names for --direct.
const viaTemporal = "temporal"

func (c directControl) find(ctx context.Context, arg string) (target, error) {
	ref, err := c.lc.FindNode(ctx, arg)
	return target{id: ref.NodeID, host: ref.Host}, err
}

func (c directControl) start(ctx context.Context, t target, a lifecycle.Action, o lifecycleOptions) (lifecycle.Operation, error) {
	id := lifecycle.OperationID(t.id, a, c.env.actor, o.key)
	c.env.message("%s %s: waiting for a worker to accept it; see: %s --operation %s", a, t.name(), t.op("watch", a), id)
	op, err := c.lc.Submit(ctx, lifecycle.OperationInput{
		StartWithinSeconds: int64(o.startWithin / time.Second),
		OperationID:        id, NodeID: t.id, Action: a, Host: t.host,
		Actor: c.env.actor, Via: viaTemporal, Reason: o.reason, CorrelationID: c.env.correlationID, Options: o.options,
	})
	if err != nil || o.key == "" {
		return op, err
	}
	if now, err := c.read(ctx, op); err == nil { // it may have started before
		op = now.Operation
	}
	return op, nil
}

func (c directControl) status(ctx context.Context, op lifecycle.Operation) (wire.OperationView, error) {
	st, err := c.read(ctx, op)
	return c.view(ctx, st), err
}

// view adds the operation's page in the Web UI, if its address is configured, and the calls
// that fail and are retried, if Temporal responds.
func (c directControl) view(ctx context.Context, st lifecycle.OperationStatus) wire.OperationView {
	st.Operation.Stuck = withoutAPI(st.Operation.Stuck)
	v := wire.OperationView{OperationStatus: st, WebURL: c.webURL(st.Operation)}
	if op := st.Operation; op.WorkflowID != "" && !op.Status.Ended() && op.Status != lifecycle.OperationAbandoned {
		ctx, cancel := context.WithTimeout(ctx, statusBudget)
		defer cancel()
		v.Faults, _ = c.lc.RunFaults(ctx, op) // without Temporal, none is shown
	}
	return v
}

// withoutAPI returns a park without the resume of a lost task, which needs the admin API. If
// that was the next step, it is now the first other option that does no harm.
func withoutAPI(s *lifecycle.Stuck) *lifecycle.Stuck {
	if s == nil {
		return nil
	}
	resume := func(o lifecycle.Option) bool { return o.Decision == lifecycle.DecisionResume }
	i := slices.IndexFunc(s.Options, resume)
	if i < 0 {
		return s
	}
	direct := *s
	direct.Options = slices.DeleteFunc(slices.Clone(s.Options), resume)
	if s.Next == s.Options[i].Command && len(direct.Options) > 0 && direct.Options[0].Harm == lifecycle.HarmNone {
		direct.Next = direct.Options[0].Command
	}
	return &direct
}

func (c directControl) webURL(op lifecycle.Operation) string {
	if op.WorkflowID == "" || c.env.temporalConfig().WebUI == "" {
		return ""
	}
	return c.lc.WebURL(op.WorkflowID, op.RunID)
}

// read queries the run, and reads its result when no worker responds: a closed
// run has one.
func (c directControl) read(ctx context.Context, op lifecycle.Operation) (lifecycle.OperationStatus, error) {
	if op.WorkflowID == "" {
		return lifecycle.OperationStatus{}, usagef("gpuaas op", "Temporal retains no operation of node %s; with --direct write NODE --operation %[1]s for an operation", op.OperationID)
	}
	query, cancel := context.WithTimeout(ctx, statusBudget)
	defer cancel()
	st, err := c.lc.Status(query, op.WorkflowID, op.RunID)
	if err == nil && st.Operation.Status.Ended() || ctx.Err() != nil {
		return st, err
	}
	if err == nil {
		op = st.Operation
	}
	if gone, ok := c.abandoned(ctx, op, st.Node); ok || err == nil {
		return gone, nil
	}
	read, done := context.WithTimeout(ctx, statusBudget)
	defer done()
	if final, resultErr := c.lc.Result(read, op.WorkflowID, op.RunID); resultErr == nil {
		return final, nil
	}
	return st, err
}

// abandoned returns the status of an operation, and whether it is abandoned: a failed
// run still returns the status that it had, and a terminated one returns none.
func (c directControl) abandoned(ctx context.Context, op lifecycle.Operation, n lifecycle.NodeRef) (lifecycle.OperationStatus, bool) {
	st := lifecycle.OperationStatus{Operation: op, Node: n}
	if op.OperationID == "" {
		return st, false
	}
	end, err := c.lc.RunEnd(ctx, op)
	if err != nil || end == "" || end == lifecycle.RunClosed { // a closed run has a result
		return st, false
	}
	n.Host = cmp.Or(n.Host, "NODE")
	plan, _ := lifecycle.PlanOf(op.Action, op.Options)
	s := plan.Abandoned(n, "", op.Options, end)
	s.Since, s.Options = *cmp.Or(op.EndedAt, new(c.env.clock.now())), nil // the options depend on the database
	if op.Stuck != nil {
		s.Phase = op.Stuck.Phase
	}
	st.Operation.Status, st.Operation.Stuck, st.Operation.DeadlineAt = lifecycle.OperationAbandoned, &s, nil
	return st, true
}

func (c directControl) newest(ctx context.Context, t target, reissue bool) (wire.OperationView, error) {
	st, err := c.newestStatus(ctx, t, reissue)
	return c.view(ctx, st), err
}

func (c directControl) newestStatus(ctx context.Context, t target, reissue bool) (lifecycle.OperationStatus, error) {
	st, err := c.read(ctx, lifecycle.Operation{WorkflowID: t.workflowID(reissue)})
	if err == nil || !slices.Contains([]string{lifecycle.ReasonNoWorker, "run_terminated"}, schema.AsError(err).Reason) || ctx.Err() != nil {
		return st, err
	}
	known, describeErr := c.lc.Described(ctx, t.workflowID(reissue))
	if describeErr != nil {
		return st, err
	}
	if known.Operation.EndedAt != nil {
		if gone, ok := c.abandoned(ctx, known.Operation, known.Node); ok {
			return gone, nil
		}
		return st, err
	}
	c.env.message("no worker responds: Temporal has this about operation %s", known.Operation.OperationID)
	return known, nil
}

func (c directControl) decide(ctx context.Context, st lifecycle.OperationStatus, r lifecycle.ResolveRequest, key string) (lifecycle.OperationStatus, error) {
	op := st.Operation
	r.ID, r.OperationID, r.By, r.Via = lifecycle.DecisionID(op.OperationID, c.env.actor, key), op.OperationID, c.env.actor, viaTemporal
	if !op.Status.Ended() {
		if now, err := c.lc.Resolve(ctx, op.WorkflowID, r); schema.KindOf(err) != schema.KindNotFound {
			return now, err
		}
	}
	// The operation has ended, before or after it was read.
	if key != "" {
		if first, err := c.lc.Resolved(ctx, op.WorkflowID, op.RunID, r); schema.KindOf(err) != schema.KindNotFound {
			return first, err
		}
	}
	if now, err := c.read(ctx, op); err == nil {
		op = now.Operation
	}
	return st, lifecycle.OperationOver(op, "NODE")
}

func (c directControl) stuck(ctx context.Context, q stuckQuery) (wire.StuckList, error) {
	if q.selector != nil {
		return wire.StuckList{}, usagef("gpuaas stuck", "--selector needs the admin API and does not work with --direct")
	}
	list := wire.StuckList{Stuck: []wire.StuckOperation{}, Nodes: []stuck.Node{}, Faults: []wire.ControlPlaneFault{}}
	var probes sync.WaitGroup
	var api []wire.ControlPlaneFault
	probes.Go(func() { list.Faults = append(list.Faults, c.lc.Faults(ctx)...) })
	probes.Go(func() { api = c.apiFaults(ctx) })
	parked, complete, err := c.lc.Parked(ctx)
	probes.Wait()
	if err != nil {
		return list, err
	}
	list.Faults = append(list.Faults, api...)
	for _, st := range parked { // each has its stuck object and its start
		op := st.Operation
		if !q.matches(op) {
			continue
		}
		op.Stuck = withoutAPI(op.Stuck)
		list.Stuck = append(list.Stuck, wire.StuckOperation{State: st.Node.State, WebURL: c.webURL(op),
			OperationSummary: wire.OperationSummary{OperationID: op.OperationID, NodeID: st.Node.NodeID, Host: st.Node.Host,
				WorkflowID: op.WorkflowID, RunID: op.RunID, Action: op.Action, Status: op.Status, Phase: op.Stuck.Phase,
				WaitingOn: op.Stuck.WaitingOn, Stuck: op.Stuck, Actor: op.Actor, Reason: op.Reason, StartedAt: *op.StartedAt}})
	}
	if limit := int(q.limit); limit > 0 && limit < len(list.Stuck) {
		list.More, list.Stuck = len(list.Stuck)-limit, list.Stuck[:limit]
	}
	if !complete {
		list.Faults = append(list.Faults, wire.ControlPlaneFault{Component: "temporal", Reason: "list_incomplete",
			Message: fmt.Sprintf("Temporal listed %d operations before the time limit: older ones may be missing", len(parked)), Next: "gpuaas stuck"})
	}
	return list, nil
}

// apiFaults returns the fault of the admin API, if one is configured and not ready.
func (c directControl) apiFaults(ctx context.Context) []wire.ControlPlaneFault {
	failure, _ := apiReady(ctx, c.env)
	if failure == nil {
		return nil
	}
	return []wire.ControlPlaneFault{{Component: "api", Reason: cmp.Or(failure.Reason, string(failure.Kind)), Message: failure.Message, Next: failure.Next}}
}

// apiReady asks the admin API whether it is ready. The failure is nil if it is, or if none is configured.
func apiReady(ctx context.Context, e *env) (failure *schema.Error, configured bool) {
	d := e.newDoer()
	if d.base == defaultAPIURL && e.flags.apiURL == "" && e.getenv("GPUAAS_API_URL") == "" {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, apiProbeLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base+healthPath, nil)
	if err == nil {
		var res *http.Response
		if res, err = d.Do(r); err == nil {
			res.Body.Close()
		}
	}
	failure, _ = errors.AsType[*schema.Error](err) // otherwise it responds, or the configuration is invalid
	return failure, true
}

func (directControl) changes(context.Context, string) <-chan struct{} { return nil }
