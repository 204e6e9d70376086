package schema

// InstanceState is the state of the machine behind a node: created by a
// provider or adopted by the manual one.
type InstanceState string

// The instance states, in lifecycle order. An instance is running at its first
// readiness report after facts, probe and SKU check.
const (
	InstanceNone          InstanceState = ""
	InstancePending       InstanceState = "pending"
	InstanceProvisioning  InstanceState = "provisioning"
	InstanceBootstrapping InstanceState = "bootstrapping"
	InstanceRunning       InstanceState = "running"
	InstanceDraining      InstanceState = "draining"
	InstanceTerminating   InstanceState = "terminating"
	InstanceTerminated    InstanceState = "terminated"
)

// InstanceStates returns every stored instance state in lifecycle order.
func InstanceStates() []InstanceState {
	return []InstanceState{
		InstancePending, InstanceProvisioning, InstanceBootstrapping, InstanceRunning,
		InstanceDraining, InstanceTerminating, InstanceTerminated,
	}
}

// LifecycleClass says how replaceable a node is. It is fixed at the first
// provision.
type LifecycleClass string

// The lifecycle classes.
const (
	ClassPersistent LifecycleClass = "persistent"
	ClassEphemeral  LifecycleClass = "ephemeral"
	ClassSpot       LifecycleClass = "spot"
)

// Instance is the machine behind a node.
type Instance struct {
	InstanceID string        `json:"instance_id"`
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id"`
	State      InstanceState `json:"state"`
}

// ResourceState is where a ledger entry stands. An entry is planned before the
// outside call, so that nothing a crash leaves behind is unknown.
type ResourceState string

// The ledger states.
const (
	ResourcePlanned  ResourceState = "planned"
	ResourceCreated  ResourceState = "created"
	ResourceReleased ResourceState = "released"
)

// Resource is one entry of a node's resource ledger: something outside that
// teardown must give back. ResourceID is the idempotency key handed to the
// provider.
type Resource struct {
	ResourceID string        `json:"resource_id"`
	NodeID     string        `json:"node_id"`
	Kind       string        `json:"kind"` // "instance"
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id,omitempty"`
	State      ResourceState `json:"state"`
}
