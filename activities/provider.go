package activities

import (
	"context"
	"regexp"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Ledger records the external resources of each node, so that none leaks. Every call but
// Created returns KindFenced if the operation ended or does not hold the node, so that the
// reset of an old run neither creates nor releases a machine.
type Ledger interface {
	// Plan records the intent to create, before the provider's call, and returns the
	// entry. A repeated call returns the entry of the first one.
	Plan(ctx context.Context, f Fence, r Resource) (Resource, error)
	// Created records that the resource exists. Only an operation that planned it may,
	// but also after it ended: the machine exists. If the resource was released before,
	// it is open again, because its creation ended after the release.
	Created(ctx context.Context, f Fence, resourceID, externalID string) error
	// Released records that the resource no longer exists.
	Released(ctx context.Context, f Fence, resourceID string) error
	// Open returns the node's entries that are not released, oldest first.
	Open(ctx context.Context, f Fence) ([]Resource, error)
}

// The limits of one try of EnsureMachine and TearDownMachine.
const (
	// ProviderTimeout bounds a try, and so how long a cancel waits for it.
	ProviderTimeout = 45 * time.Second
	// ProviderHeartbeat is after how long without a heartbeat the try counts as dead.
	ProviderHeartbeat = 15 * time.Second
)

// ResourceState is the state of a ledger entry. An entry is planned before the
// provider's call, so that a crash leaves no unknown resource.
type ResourceState string

// The ledger states.
const (
	ResourcePlanned  ResourceState = "planned"
	ResourceCreated  ResourceState = "created"
	ResourceReleased ResourceState = "released"
)

// Resource is one entry of a node's resource ledger, which a teardown must
// release.
type Resource struct {
	// ResourceID of the machine is the ID of its instance.
	ResourceID string        `json:"resource_id"`
	NodeID     string        `json:"node_id"`
	Kind       string        `json:"kind"` // "instance"
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id,omitempty"`
	State      ResourceState `json:"state"`
	// Host and Region are those of the node and of its instance.
	Host   string `json:"host,omitempty"`
	Region string `json:"region,omitempty"`
}

func (r Resource) machine() machine.Ref {
	return machine.Ref{InstanceID: r.ResourceID, ExternalID: r.ExternalID, Host: r.Host, Region: r.Region}
}

// Machine has the activities that use providers and the resource ledger.
type Machine struct {
	Ledger    Ledger
	Providers map[string]Source // by name
	Boots     Boots
}

// Source is a provider with its description.
type Source struct {
	machine.Info
	Provider MachineProvider
}

// Boots issues what new machines enroll with.
type Boots interface {
	// NewBoot issues a reference that can be used once to the node's bundle, and voids the
	// node's older one. machine.ReasonStarting while another try of the operation may still
	// create the machine with the older one.
	NewBoot(ctx context.Context, f Fence) (Boot, error)
}

// MachineInput is the input of the activities of an instance's machine.
type MachineInput struct {
	Fence    Fence              `json:"fence"`
	Host     string             `json:"host"`
	Instance lifecycle.Instance `json:"instance"`
}

// EnsureMachine gets the instance's machine from its provider. It records the intent
// in the ledger before it calls the provider. A second run returns the same machine.
func (m *Machine) EnsureMachine(ctx context.Context, in MachineInput) (Resource, error) {
	source, err := m.source(in.Instance.Provider)
	if err != nil {
		return Resource{}, Fail(err)
	}
	planned, err := m.Ledger.Plan(ctx, in.Fence, Resource{
		ResourceID: in.Instance.InstanceID, NodeID: in.Fence.NodeID, Host: in.Host,
		Kind: kindInstance, Provider: in.Instance.Provider, State: ResourcePlanned,
	})
	if err != nil {
		return Resource{}, Fail(err)
	}
	ctx, done := uncanceled(ctx)
	defer done()
	created, err := source.Provider.Create(ctx, machine.Spec{InstanceID: in.Instance.InstanceID, NodeID: in.Fence.NodeID, Host: in.Host,
		Options: in.Instance.Options},
		func(ctx context.Context) (Boot, error) { return m.Boots.NewBoot(ctx, in.Fence) })
	if err != nil {
		return Resource{}, Fail(err)
	}
	planned.ExternalID, planned.State = created.ExternalID, ResourceCreated
	return planned, Fail(m.Ledger.Created(ctx, in.Fence, planned.ResourceID, created.ExternalID))
}

// kindInstance is the kind of the ledger entry of the machine.
const kindInstance = "instance"

// AwaitMachine fails until the provider reports that the instance's machine is running.
// Temporal retries it, so waiting adds no events to the history. It switches a stopped machine
// on. A machine that failed or is missing is a final error with the end of its console.
func (m *Machine) AwaitMachine(ctx context.Context, in MachineInput) error {
	source, err := m.source(in.Instance.Provider)
	if err != nil {
		return Fail(err)
	}
	ctx, done := uncanceled(ctx)
	defer done()
	ref := machine.Ref{InstanceID: in.Instance.InstanceID, Host: in.Host, Region: in.Instance.Region}
	found, err := source.Provider.Describe(ctx, ref)
	if err != nil {
		return Fail(err)
	}
	switch found.Phase {
	case machine.Running:
		return nil
	case machine.Stopped:
		if err := source.Provider.Power(ctx, found.Ref, machine.PowerOn); err != nil {
			return Fail(err)
		}
	case machine.Failed, machine.Deleting:
		return Fail(machine.Errorf(machine.ReasonFailed, "the machine of %s is %s: %s", in.Host, found.Phase, text.Line(found.Detail, maxDetail)))
	case machine.Creating:
	}
	return Fail(machine.Errorf(machine.ReasonStarting, "the machine of %s is %s: %s", in.Host, found.Phase, text.Line(found.Detail, maxDetail)))
}

// maxDetail bounds what a message quotes of a provider's answer, in bytes.
const maxDetail = 300

// consoleEnd is the end of the machine's console in one line, empty if it cannot be read. A token
// in it is replaced.
func consoleEnd(ctx context.Context, source Source, r machine.Ref) string {
	tail, err := source.Provider.Console(ctx, r)
	if err != nil || len(tail) == 0 {
		return ""
	}
	token := regexp.MustCompile(regexp.QuoteMeta(trust.TokenPrefix) + `\S*`)
	safe := token.ReplaceAllString(string(tail), trust.TokenPrefix+"…") // before the cut, which may split a token
	return "; its console ends with: " + text.Line(safe[max(0, len(safe)-maxDetail):], maxDetail)
}

// DescribeMachine returns what the machine does and the end of its console in one line, for the
// cause of a park, which is not archived. The line is untrusted.
func (m *Machine) DescribeMachine(ctx context.Context, in MachineInput) (string, error) {
	source, err := m.source(in.Instance.Provider)
	if err != nil {
		return "", Fail(err)
	}
	ctx, done := uncanceled(ctx)
	defer done()
	found, err := source.Provider.Describe(ctx, machine.Ref{InstanceID: in.Instance.InstanceID, Host: in.Host, Region: in.Instance.Region})
	if err != nil {
		return "", Fail(err)
	}
	line := "the machine is " + string(found.Phase)
	if found.Detail != "" {
		line += ": " + text.Line(found.Detail, maxDetail)
	}
	return line + consoleEnd(ctx, source, found.Ref), nil
}

// OpenLedger is the part of a node's ledger that is not released.
type OpenLedger struct {
	Open []Resource `json:"open,omitempty"`
}

// ReadLedger returns the open entries of the node's ledger.
func (m *Machine) ReadLedger(ctx context.Context, f Fence) (OpenLedger, error) {
	open, err := m.Ledger.Open(ctx, f)
	return OpenLedger{Open: open}, Fail(err)
}

// VerifyMachine asks the provider whether the instance's machine still exists. If it does not, the
// ledger entry is released. It fails with machine.ReasonDeleting while the machine is being deleted,
// and with machine.ReasonFailed if it is switched off: a deletion may have begun with that.
// A second run after a release asks nothing.
func (m *Machine) VerifyMachine(ctx context.Context, in MachineInput) error {
	open, err := m.Ledger.Open(ctx, in.Fence)
	if err != nil {
		return Fail(err)
	}
	i := slices.IndexFunc(open, func(r Resource) bool { return r.ResourceID == in.Instance.InstanceID })
	if i < 0 {
		return nil
	}
	source, err := m.source(open[i].Provider)
	if err != nil || !source.Creates { // an adopted machine stays
		return Fail(err)
	}
	ctx, done := uncanceled(ctx)
	defer done()
	found, err := source.Provider.Describe(ctx, open[i].machine())
	switch {
	case machine.Is(err, machine.ReasonMissing):
		return Fail(m.Ledger.Released(ctx, in.Fence, open[i].ResourceID))
	case err == nil && found.Phase == machine.Deleting:
		err = machine.Errorf(machine.ReasonDeleting, "the machine of %s is %s", in.Host, found.Phase)
	case err == nil && (found.Phase == machine.Stopped || found.Phase == machine.Failed):
		err = machine.Errorf(machine.ReasonFailed, "the provider still has the machine of %s, but it is %s", in.Host, found.Phase).
			WithNext("Switch the machine on at its provider, then retry; or skip, then run gpuaas node terminate " + in.Host + " again.")
	}
	return Fail(err)
}

// uncanceled returns a context for the calls of a provider, which sends heartbeats until
// done is called. A cancel of the operation does not interrupt the calls: a creation that
// is cut off may end later, unseen. ProviderTimeout bounds them.
func uncanceled(ctx context.Context) (_ context.Context, done func()) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), ProviderTimeout)
	go func() {
		tick := time.NewTicker(ProviderHeartbeat / 3)
		defer tick.Stop()
		for {
			select {
			case <-call.Done():
				return
			case <-tick.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	return call, cancel
}

func (m *Machine) source(name string) (Source, error) {
	s, ok := m.Providers[name]
	if !ok {
		return s, schema.NewError(schema.KindInvalidRequest, "this worker has no provider %q", name).
			WithReason(lifecycle.ReasonProviderUnknown).WithNext("start a worker that has the provider")
	}
	return s, nil
}
