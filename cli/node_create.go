package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// maxCreate is the largest number of nodes of one command.
	maxCreate = 50
	// createParallel is the default number of nodes that are provisioned at a time: most
	// providers limit the rate of creations.
	createParallel = 5
)

// nodeCreateOptions are the flags of gpuaas node create.
type nodeCreateOptions struct {
	register        wire.RegisterNodeRequest
	machine         machine.Options
	sshKeys         []string
	count, parallel int
	reason          string
}

// newNodeCreate registers and provisions nodes.
func newNodeCreate(e *env) *cobra.Command {
	var o nodeCreateOptions
	const help = "gpuaas node create"
	c := e.command("create NAME", "Register and provision new nodes",
		fmt.Sprintf(`Registers nodes whose provider creates machines, provisions them, and waits until they run.
With --count the nodes have the names NAME-1, NAME-2, and so on, and some of them are
provisioned at a time. If the provider's quota is used up or it has no free machine, no
further node is started. Nothing is registered if the provider does not have the machine.

Run the same command again to continue: nodes that run are left as they are, and an
operation that is open is followed, also one of another command. A node that exists with
another provider, SKU, region, class, workload driver or machine than the flags name is an
error.

A node is pending if the wait ended before its provisioning, for example after Ctrl-C.

The exit code is 1 if a node failed, 5 if one is parked, pending or not started. At most
%d nodes.`, maxCreate),
		`  gpuaas node create vm-1 --mode libvirt --sku cpu-dev --region local
  gpuaas node create gpu --count 8 --mode maas --sku h100 --region fra1 --type h100`,
		func(ctx context.Context, name string) error {
			var missing []string
			for flag, value := range map[string]string{"--mode": o.register.OnboardingMode, "--sku": o.register.SKU, "--region": o.register.RegionCode} {
				if value == "" {
					missing = append(missing, flag)
				}
			}
			slices.Sort(missing)
			switch {
			case len(missing) > 0:
				return usagef(help, "missing %s", strings.Join(missing, ", "))
			case o.count < 1 || o.count > maxCreate:
				return usagef(help, "--count %d: must be 1 to %d", o.count, maxCreate)
			case o.parallel < 1:
				return usagef(help, "--max-parallel %d: must be at least 1", o.parallel)
			}
			var err error
			if o.machine.SSHKeys, err = readPublicKeys(help, o.sshKeys); err != nil {
				return err
			}
			return createNodes(ctx, e, name, o)
		})
	f := c.Flags()
	f.StringVar(&o.register.OnboardingMode, "mode", "", "provider of the machines, see gpuaas provider list (required)")
	f.StringVar(&o.register.SKU, "sku", "", "SKU of the catalog (required)")
	f.StringVar(&o.register.RegionCode, "region", "", "region code of the nodes (required)")
	f.StringVar(&o.register.WorkloadDriver, "workload-driver", "", "how the agents find and stop workloads: "+driverNames()+" (default: the SKU's)")
	addChoices(c, &o.register.LifecycleClass, "class", "lifecycle `CLASS` (default persistent)", inventory.ClassPersistent, inventory.ClassEphemeral, inventory.ClassSpot)
	completes(c, "mode", completeMode(e))
	addMachine(e, c, &o.machine, &o.sshKeys)
	f.IntVar(&o.count, "count", 1, fmt.Sprintf("number of nodes, at most %d", maxCreate))
	f.IntVar(&o.parallel, "max-parallel", createParallel, "how many nodes to provision at a time")
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail and shown with the operations")
	return c
}

// The outcomes of the creation of a node.
const (
	createRunning    bulkOutcome = "running"
	createParked     bulkOutcome = "parked"
	createPending    bulkOutcome = "pending"     // started, and the wait ended before the provisioning
	createNotStarted bulkOutcome = "not_started" // interrupted, or the provider has no more machines
)

// createRow is one node of the result.
type createRow struct {
	Host        string      `json:"host"`
	NodeID      string      `json:"node_id,omitempty"`
	OperationID string      `json:"operation_id,omitempty"`
	Outcome     bulkOutcome `json:"outcome"`
	// Code is the kind of the error of a node that was refused.
	Code schema.Kind `json:"code,omitempty"`
	// Reason is why the node does not run, and Next the command that helps.
	Reason string `json:"reason,omitempty"`
	Next   string `json:"next,omitempty"`
}

func (r *createRow) name() string         { return r.Host }
func (r *createRow) outcome() bulkOutcome { return r.Outcome }

func (r *createRow) details() (text string) {
	if r.Reason != "" {
		text = ": " + r.Reason
	}
	if r.Next != "" {
		text += "; next: " + r.Next
	}
	return text
}

// creations is one run of gpuaas node create.
type creations struct {
	bulkRun[*createRow]
	control apiControl
	options nodeCreateOptions
}

// createNodes registers and provisions nodes and prints how each ended.
func createNodes(ctx context.Context, e *env, name string, o nodeCreateOptions) error {
	m := &creations{bulkRun: bulkRun[*createRow]{env: e, noun: "node"}, control: e.apiControl(), options: o}
	if err := m.checkProvider(ctx, name); err != nil {
		return err
	}
	for i := range o.count {
		r := &createRow{Host: name, Outcome: createNotStarted}
		if o.count > 1 {
			r.Host = fmt.Sprintf("%s-%d", name, i+1)
		}
		m.rows = append(m.rows, r)
	}
	m.chosen = m.rows
	m.work(ctx, o.parallel, m.one)
	summary, err := m.print(map[string]any{"nodes": m.rows}, listing[*createRow]{
		header: []string{"NODE", "OUTCOME", "REASON", "NEXT", "OPERATION"}, wide: 1,
		cells: func(r *createRow) []string {
			return []string{r.Host, r.Outcome.words(), dash(r.Reason), dash(r.Next), dash(r.OperationID)}
		},
		name: (*createRow).name,
	})
	switch unfinished := summary[createParked] + summary[createPending] + summary[createNotStarted]; {
	case err != nil:
		return err
	case summary[bulkFailed] > 0:
		return &exitError{schema.ExitFailed, []string{text.Count(summary[bulkFailed], "node") + " failed"}}
	case unfinished > 0:
		return &exitError{schema.ExitPending, []string{text.Count(unfinished, "node") + " not running yet; run the command again to continue"}}
	}
	return nil
}

// checkProvider refuses what the start of every provisioning would refuse, before any node is
// registered.
func (m *creations) checkProvider(ctx context.Context, name string) error {
	p, err := findProvider(ctx, m.control.Client, m.options.register.OnboardingMode)
	switch {
	case err != nil:
		return err
	case !p.Creates:
		return schema.NewError(schema.KindInvalidRequest, "provider %q creates no machines", p.Name).
			WithReason("no_created_machine").WithNext("gpuaas node register " + name)
	}
	_, err = lifecycle.Candidate{Host: name, State: lifecycle.NodeRegistered, Provider: p.Info}.
		Admit(lifecycle.ActionProvision, lifecycle.Options{Machine: m.options.machine})
	return err
}

// one creates one node and completes its row.
func (m *creations) one(ctx context.Context, r *createRow) {
	node, err := m.registered(ctx, r.Host)
	if err != nil {
		if ctx.Err() == nil { // otherwise the row stays not_started
			r.fail(target{host: r.Host}, err)
		}
		return
	}
	r.NodeID = node.ID
	if node.Instance != nil && node.Instance.State == lifecycle.InstanceRunning {
		r.Outcome = createRunning
		return
	}
	if ctx.Err() == nil {
		m.provision(ctx, r, node)
	}
}

// provision starts the provisioning of a node, or finds the one that is open, and follows it.
func (m *creations) provision(ctx context.Context, r *createRow, node wire.NodeView) {
	t, o := target{id: node.ID, host: node.Host}, lifecycle.Options{Machine: m.options.machine}
	op, err := m.control.start(ctx, t, lifecycle.ActionProvision, lifecycleOptions{reason: m.options.reason, options: o})
	if begun, ok := m.begunElsewhere(ctx, t, err); ok {
		op, err = begun, nil
	}
	switch {
	case err == nil && op.OperationID == "":
		r.Outcome = createRunning
		return
	case startUnknown(ctx, err):
		r.Outcome, r.Reason, r.Next = createPending, "the provisioning is not known to have started", "gpuaas op list --node "+t.name()
		return
	case err != nil:
		r.fail(t, err)
		return
	}
	r.OperationID = op.OperationID
	m.progress(r, 0, "provisioning as operation "+op.OperationID)
	st, err := m.env.follow(ctx, followRequest{target: t, operation: op, options: o, control: m.control, quiet: true})
	m.followed(r, t, st.Operation, err)
}

// begunElsewhere returns the provisioning that another command started on the node, if that is why
// the start was refused. It has no ID if it ended and the instance runs.
func (m *creations) begunElsewhere(ctx context.Context, t target, refusal error) (op lifecycle.Operation, ok bool) {
	if refusal == nil || schema.KindOf(refusal) != schema.KindOperationInProgress && schema.AsError(refusal).Reason != "already_provisioned" {
		return op, false
	}
	now, err := m.control.find(ctx, t.id)
	switch {
	case err != nil || len(differences(m.options, *now.view)) > 0:
		return op, false
	case now.view.Instance != nil && now.view.Instance.State == lifecycle.InstanceRunning:
		return op, true
	case now.view.Operation == nil || now.view.Operation.Action != lifecycle.ActionProvision:
		return op, false
	}
	return lifecycle.Operation{OperationID: now.view.Operation.OperationID, Action: lifecycle.ActionProvision}, true
}

// registered registers the host, or returns the node that an earlier command registered.
// KindAlreadyExists if that node or its live instance differs from what is asked for.
func (m *creations) registered(ctx context.Context, host string) (wire.NodeView, error) {
	q := m.options.register
	q.Host = host
	node, err := decode[wire.NodeView](m.control.RegisterNode(ctx, nil, q))
	if err == nil || schema.AsError(err).Reason != "host_taken" {
		return node, err
	}
	t, err := m.control.find(ctx, host)
	if err != nil {
		return node, err
	}
	if differs := differences(m.options, *t.view); len(differs) > 0 {
		return node, schema.NewError(schema.KindAlreadyExists, "node %s exists with %s", host, strings.Join(differs, ", ")).
			WithNext("gpuaas node show " + host)
	}
	return *t.view, nil
}

func (r *createRow) fail(t target, err error) {
	e := schema.AsError(t.inError(err))
	r.Outcome, r.Code, r.Reason, r.Next = bulkFailed, e.Kind, e.Message, e.Next
}

// followed sets the outcome after the wait. Without a free machine, no further node is started.
func (m *creations) followed(r *createRow, t target, op lifecycle.Operation, waitErr error) {
	switch {
	case op.Status == lifecycle.OperationCompleted:
		r.Outcome = createRunning
	case op.Status.Ended():
		r.Outcome, r.Reason = bulkFailed, op.Outcome
	case waitErr != nil:
		r.Outcome, r.Next = createPending, t.op("watch", op.Action)
		why, _, _ := strings.Cut(waitErr.Error(), "\n")
		r.Reason = strings.TrimPrefix(why, "error: ")
	default: // parked or abandoned
		r.Outcome, r.Next = createParked, nextCommand(t, op.Action, op.Stuck)
		if op.Status == lifecycle.OperationAbandoned {
			r.Outcome = bulkFailed
		}
		if op.Stuck == nil {
			return
		}
		r.Reason = op.Stuck.Message
		if slices.Contains([]string{machine.ReasonQuota, machine.ReasonCapacity}, op.Stuck.Reason) {
			m.stopped.Store(true)
		}
	}
}
