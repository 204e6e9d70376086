package activities

import (
	"context"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Ledger records the external resources of each node, so that none leaks. Every call but
// Created returns KindFenced if the operation ended or does not hold the node, so that the
// reset of an old run neither creates nor releases a machine.
type Ledger interface {
	// Plan records the intent to create, before the provider's call, and returns the
	// entry. A repeated call returns the entry of the first one.
	Plan(ctx context.Context, f Fence, r Resource) (Resource, error)
	// Created records that the resource exists. Only the operation that planned it may,
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

// Provider creates and deletes the machine behind a node. The resource's id is
// the idempotency key.
type Provider interface {
	// Name is the provider's name in the inventory, for example manual.
	Name() string
	// Creates reports whether the provider creates machines, so that a node may
	// be provisioned before it is enrolled.
	Creates() bool
	// Ensure creates or finds the machine and returns the provider's id of it. Calling it
	// again with the same resource finds the same machine.
	Ensure(ctx context.Context, r Resource, host string) (externalID string, err error)
	// Release returns the machine. Releasing a machine that no longer exists succeeds.
	Release(ctx context.Context, r Resource) error
}

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
// release. ResourceID is the idempotency key of the provider's calls.
type Resource struct {
	ResourceID string        `json:"resource_id"`
	NodeID     string        `json:"node_id"`
	Kind       string        `json:"kind"` // "instance"
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id,omitempty"`
	State      ResourceState `json:"state"`
}

// Machine has the activities that use providers and the resource ledger.
type Machine struct {
	Ledger    Ledger
	Providers map[string]Provider // by name
}

// EnsureInput is the input of EnsureMachine.
type EnsureInput struct {
	Fence    Fence  `json:"fence"`
	Provider string `json:"provider"`
	Host     string `json:"host"`
}

// EnsureMachine gets the node's machine from its provider. It records the intent
// in the ledger before it calls the provider. A second run returns the same machine.
func (m *Machine) EnsureMachine(ctx context.Context, in EnsureInput) (Resource, error) {
	provider, err := m.provider(in.Provider)
	if err != nil {
		return Resource{}, Fail(err)
	}
	planned, err := m.Ledger.Plan(ctx, in.Fence, Resource{
		ResourceID: machineOf(in.Fence), NodeID: in.Fence.NodeID,
		Kind: kindInstance, Provider: in.Provider, State: ResourcePlanned,
	})
	if err != nil {
		return Resource{}, Fail(err)
	}
	ctx, done := uncanceled(ctx)
	defer done()
	externalID, err := provider.Ensure(ctx, planned, in.Host)
	if err != nil {
		return Resource{}, Fail(err)
	}
	planned.ExternalID, planned.State = externalID, ResourceCreated
	return planned, Fail(m.Ledger.Created(ctx, in.Fence, planned.ResourceID, externalID))
}

// kindInstance is the kind of the ledger entry of the machine.
const kindInstance = "instance"

// machineOf is the ID of the ledger entry of the machine that the operation gets.
func machineOf(f Fence) string { return lifecycle.ResourceID(f.OperationID, kindInstance) }

// IsMachineOf reports whether the entry is the machine that the operation gets.
func (r Resource) IsMachineOf(f Fence) bool { return r.ResourceID == machineOf(f) }

// ReturnMachine releases the machine that EnsureMachine planned for the same operation, if
// it did, and returns how many it released. It keeps the entries of other operations. A
// second run continues where the first one stopped.
func (m *Machine) ReturnMachine(ctx context.Context, f Fence) (released int, err error) {
	return m.releaseOpen(ctx, f, func(r Resource) bool { return r.IsMachineOf(f) })
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

// teardownPasses bounds how often a teardown reads the ledger again.
const teardownPasses = 3

// TearDownMachine releases every open entry of the node's ledger and returns how many it
// released. It then reads the ledger again, because the creation of a machine may have
// ended meanwhile. A second run continues where the first one stopped.
func (m *Machine) TearDownMachine(ctx context.Context, f Fence) (released int, err error) {
	return m.releaseOpen(ctx, f, func(Resource) bool { return true })
}

// releaseOpen releases the open entries of the node's ledger that match, until there is none.
func (m *Machine) releaseOpen(ctx context.Context, f Fence, matches func(Resource) bool) (released int, err error) {
	ctx, done := uncanceled(ctx)
	defer done()
	for range teardownPasses {
		open, err := m.Ledger.Open(ctx, f)
		if err != nil {
			return 0, Fail(err)
		}
		open = slices.DeleteFunc(open, func(r Resource) bool { return !matches(r) })
		if len(open) == 0 {
			return released, nil
		}
		for _, r := range open {
			if err := m.release(ctx, f, r); err != nil {
				return 0, Fail(err)
			}
			released++
		}
	}
	return 0, Fail(schema.NewError(schema.KindServiceUnavailable, "node %s has new entries in its ledger after each release", f.NodeID))
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

func (m *Machine) release(ctx context.Context, f Fence, r Resource) error {
	provider, err := m.provider(r.Provider)
	if err != nil {
		return err
	}
	if err := provider.Release(ctx, r); err != nil {
		return err
	}
	return m.Ledger.Released(ctx, f, r.ResourceID)
}

func (m *Machine) provider(name string) (Provider, error) {
	p, ok := m.Providers[name]
	if !ok {
		return nil, schema.NewError(schema.KindInvalidRequest, "this worker has no provider %q", name).
			WithReason(lifecycle.ReasonProviderUnknown).WithNext("start a worker that has the provider")
	}
	return p, nil
}
