package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// LifecycleRequest is the body of POST /api/v1/admin/nodes/{node}/{verb}. An
// empty body is allowed.
type LifecycleRequest struct {
	Reason  string            `json:"reason,omitempty"`
	Options lifecycle.Options `json:"options"`
	// StartWithinSeconds is how long the operation may take to claim its node; then it
	// is rejected. 0 means lifecycle.StartWithin.
	StartWithinSeconds int64 `json:"start_within_seconds,omitempty"`
}

// LifecycleResponse is the 202 response to a lifecycle request. BootstrapBundle is set
// for enroll only, and only in this response.
type LifecycleResponse struct {
	Operation       lifecycle.Operation    `json:"operation"`
	Node            NodeView               `json:"node"`
	BootstrapBundle *trust.BootstrapBundle `json:"bootstrap_bundle,omitempty"`
	// RecoveryBundle is set for reissue-enrollment only.
	RecoveryBundle *RecoveryBundle `json:"recovery_bundle,omitempty"`
	// Note is what to know about the operation, for a person; often empty.
	Note string `json:"note,omitempty"`
}

// RecoveryBundle is the bundle of a reissue with the one command that applies
// it on the node.
type RecoveryBundle struct {
	trust.BootstrapBundle
	// RestartCommand is a shell command to copy to the node: it updates
	// GPUAAS_ENROLLMENT_TOKEN and the rest of the env file, moves stale
	// certificate and key aside and restarts the agent. It holds the token.
	RestartCommand string `json:"restart_command"`
}

// BootstrapScriptResponse is the response to POST …/bootstrap-script.
type BootstrapScriptResponse struct {
	// Script installs the agent on a Debian or Ubuntu host. It holds the token,
	// or with FetchRef a one-time reference in its place.
	Script    string    `json:"script"`
	ExpiresAt time.Time `json:"expires_at"`
	// Note is that of LifecycleResponse.
	Note string `json:"note,omitempty"`
}

// BootstrapScriptRequest is the body of POST …/bootstrap-script. An empty body
// is allowed.
type BootstrapScriptRequest struct {
	// FetchRef puts a one-time reference into the script instead of the token,
	// for cloud-init and other places that many users can read.
	FetchRef bool `json:"fetch_ref,omitempty"`
}
