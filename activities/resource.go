package activities

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
