package lifecycle

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

// Instance is the machine behind a node.
type Instance struct {
	InstanceID string        `json:"instance_id"`
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id"`
	State      InstanceState `json:"state"`
}
