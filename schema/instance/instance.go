// Package instance describes the instances of nodes as the admin API returns them.
package instance

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// View is an instance as the admin API returns it, live or ended. It is the response of
// GET /api/v1/admin/instances/{instance_id}.
type View struct {
	lifecycle.Instance
	NodeID string `json:"node_id"`
	Host   string `json:"host"` // of the node
	// StartedAt is when a provisioning began the instance, before the machine existed.
	StartedAt time.Time `json:"started_at"`
	// EndedAt is when the instance was terminated, nil while it is live.
	EndedAt *time.Time `json:"ended_at,omitempty"`
	// Artifacts are the versions and digests of what runs on the machine by name, as its agent
	// reported them, and ArtifactsAt is when. Only a single live instance has them. They are untrusted.
	Artifacts   map[string]string `json:"artifacts,omitempty"`
	ArtifactsAt *time.Time        `json:"artifacts_at,omitempty"`
	// Operation is the open operation of the node, nil if there is none or the instance ended.
	Operation *wire.OperationSummary `json:"operation,omitempty"`
}

// List is the response of GET /api/v1/admin/instances, newest instance first. It has the ended
// instances of a node as well as the live one, also after the node was removed.
type List struct {
	Instances []View `json:"instances"`
	// NextPageToken selects the next page, empty on the last one.
	NextPageToken string `json:"next_page_token,omitempty"`
}

// States lists the states of an instance in lifecycle order.
func States() []lifecycle.InstanceState {
	return []lifecycle.InstanceState{lifecycle.InstancePending, lifecycle.InstanceProvisioning, lifecycle.InstanceBootstrapping,
		lifecycle.InstanceRunning, lifecycle.InstanceDraining, lifecycle.InstanceTerminating, lifecycle.InstanceTerminated}
}
