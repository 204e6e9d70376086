package activities

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Machine holds the activities on providers and the resource ledger.
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

// EnsureMachine takes the node's machine from its provider: the intent is in the
// ledger before the outside call, the provider finds what an earlier run made.
// A second run gives the same machine.
func (m *Machine) EnsureMachine(ctx context.Context, in EnsureInput) (Resource, error) {
	provider, err := m.provider(in.Provider)
	if err != nil {
		return Resource{}, fail(err)
	}
	planned, err := m.Ledger.Plan(ctx, in.Fence, Resource{
		ResourceID: lifecycle.ResourceID(in.Fence.OperationID, "instance"), NodeID: in.Fence.NodeID,
		Kind: "instance", Provider: in.Provider, State: ResourcePlanned,
	})
	if err != nil {
		return Resource{}, fail(err)
	}
	externalID, err := provider.Ensure(ctx, planned, in.Host)
	if err != nil {
		return Resource{}, fail(err)
	}
	planned.ExternalID, planned.State = externalID, ResourceCreated
	return planned, fail(m.Ledger.Created(ctx, in.Fence, planned.ResourceID, externalID))
}

// TearDownMachine gives back everything that the node's ledger lists and returns how
// many entries that were. A second run goes on where the first one stopped.
func (m *Machine) TearDownMachine(ctx context.Context, f Fence) (int, error) {
	open, err := m.Ledger.Open(ctx, f.NodeID)
	if err != nil {
		return 0, fail(err)
	}
	for _, r := range open {
		if err := m.release(ctx, f, r); err != nil {
			return 0, fail(err)
		}
	}
	return len(open), nil
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
			WithReason("provider_unknown").WithNext("start a worker that has the provider, then: gpuaas op retry NODE")
	}
	return p, nil
}
