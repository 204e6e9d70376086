package wire

import (
	"encoding/base64"
	"math"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
)

// PollRequest is the body of POST /internal/v1/nodes/{node_id}/tasks/wait: the
// agent's report of its state and its request for its next task. The response is
// 200 with a TaskOffer, or 204 when no task arrived within the wait.
type PollRequest struct {
	// HeldTasks are the tasks that the agent's journal lists as accepted or
	// unreported, at most MaxHeldTasks. The server does not offer them again, and
	// offers nothing to a node that holds MaxHeldTasks.
	HeldTasks []string `json:"held_tasks,omitempty"`
	// Nonce is the base64url of NonceBytes random bytes, new for each poll. The
	// lease grant of the offer repeats it.
	Nonce string `json:"nonce"`
	// AgentSession identifies the agent's process: the machine's boot id, the process's
	// start and a random part. 1 to MaxSession of A-Z a-z 0-9 . _ -
	AgentSession string `json:"agent_session"`
	// PollSeq counts the polls of the session from 1; 0 if the agent does not
	// count. The agent sends a poll after it has processed the responses to all
	// polls before it, so a task that was dispatched to an earlier poll and is
	// not in HeldTasks was lost in transit and is offered again at once.
	PollSeq int64 `json:"poll_seq,omitempty"`
	// VerifierSet is the version of the verifier set that the node verifies
	// tasks with, 0 for none.
	VerifierSet int64 `json:"verifier_set,omitempty"`
	// VerifierSetHash is the hex SHA-256 of that set's signed body, which shows the
	// server that the node has the set that it published. Optional.
	VerifierSetHash string `json:"verifier_set_hash,omitempty"`
	// NodeCABundle is the trust.BundleDigest of the node's bundle of node CAs, empty if it
	// has none. Optional.
	NodeCABundle string `json:"node_ca_bundle,omitempty"`
	// Floors are the node's counters. After a restore of the database they are ahead
	// of the server's, which then raises its own.
	Floors task.Floors `json:"floors,omitzero"`
	// WaitSeconds is how long the server may hold the poll open, capped at
	// MaxPollTimeout; 0 returns at once.
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
	// AuditCheckpoint is the newest checkpoint of the audit trail that the node got, as
	// text; empty for none. The server compares it with the trail.
	AuditCheckpoint string `json:"audit_checkpoint,omitempty"`
	// Heartbeat is the state of the node. The agent sends one at least every
	// HeartbeatInterval and soon after its workloads or its cordon changed.
	Heartbeat *Heartbeat `json:"heartbeat,omitempty"`
}

// Heartbeat is what an agent reports about itself and its node. The server stores
// it before it looks for a task.
type Heartbeat struct {
	AgentVersion  string          `json:"agent_version"`
	UptimeSeconds int64           `json:"uptime_seconds"`
	BootID        string          `json:"boot_id"`
	Cordoned      bool            `json:"cordoned"`
	Workloads     []task.Workload `json:"workloads"` // at most MaxWorkloads
	// Phase is PhaseReady.
	Phase string `json:"phase"`
	// Fault is why the agent accepts no tasks, empty if it does. The server offers
	// none until a heartbeat without a fault. Printable ASCII, at most MaxFault.
	Fault string `json:"fault,omitempty"`
	// Driver is the name of the workload driver, empty if none is configured. DriverFault
	// is why it does not list the workloads, empty if it does: printable ASCII, at most
	// MaxFault.
	Driver      string `json:"driver,omitempty"`
	DriverFault string `json:"driver_fault,omitempty"`
	// Health is the newest report of the agent's checkers, nil if it changed nothing since the last
	// heartbeat that the server acknowledged. A report is sent at least every HealthInterval.
	Health *health.Report `json:"health,omitempty"`
	// At is when the listing of the workloads began, by the node's clock. It orders the
	// lists.
	At time.Time `json:"at"`
}

// PhaseReady is the phase of an agent that polls.
const PhaseReady = "ready"

// Wait is WaitSeconds as a duration of at most MaxPollTimeout.
func (r PollRequest) Wait() time.Duration {
	return time.Duration(min(r.WaitSeconds, MaxPollTimeout.Seconds()) * float64(time.Second))
}

// Validate checks every field, including those of the heartbeat. Errors are
// KindInvalidRequest with the reason bad_ and the name of the field.
func (r PollRequest) Validate() error {
	if len(r.HeldTasks) > MaxHeldTasks {
		return badField("held_tasks", "held_tasks has more than %d entries", MaxHeldTasks)
	}
	for _, id := range r.HeldTasks {
		if !schema.IsID(id) {
			return badField("held_tasks", "held_tasks must contain task ids")
		}
	}
	switch {
	case !isNonce(r.Nonce):
		return badField("nonce", "nonce must be %d random bytes in unpadded base64url, new for each poll", NonceBytes)
	case !text.IsToken(r.AgentSession, MaxSession, "._-"):
		return badField("agent_session", "agent_session must be 1 to %d of A-Z a-z 0-9 . _ -", MaxSession)
	case r.PollSeq < 0 || r.PollSeq > MaxInteger:
		return badField("poll_seq", "poll_seq must be 0 to %d", int64(MaxInteger))
	case r.VerifierSet < 0 || r.VerifierSet > MaxInteger:
		return badField("verifier_set", "verifier_set must be 0 to %d", int64(MaxInteger))
	case r.VerifierSetHash != "" && !text.IsSHA256Hex(r.VerifierSetHash):
		return badField("verifier_set_hash", "verifier_set_hash must be 64 lower-case hex digits")
	case r.NodeCABundle != "" && !text.IsSHA256Hex(r.NodeCABundle):
		return badField("node_ca_bundle", "node_ca_bundle must be 64 lower-case hex digits")
	case r.Floors.TaskSeq < 0 || r.Floors.TaskSeq > MaxInteger || r.Floors.IdentitySequence < 0 || r.Floors.IdentitySequence > MaxInteger:
		return badField("floors", "each of floors must be 0 to %d", int64(MaxInteger))
	case len(r.AuditCheckpoint) > audit.MaxCheckpointText:
		return badField("audit_checkpoint", "audit_checkpoint has more than %d bytes", audit.MaxCheckpointText)
	case r.WaitSeconds < 0 || math.IsNaN(r.WaitSeconds):
		return badField("wait_seconds", "wait_seconds must not be negative")
	case r.Heartbeat != nil:
		return r.Heartbeat.validate()
	}
	return nil
}

func (h Heartbeat) validate() error {
	switch {
	case !text.IsPrintable(h.AgentVersion, MaxAgentVersion):
		return badField("agent_version", "heartbeat: agent_version must be at most %d printable ASCII characters", MaxAgentVersion)
	case h.UptimeSeconds < 0 || h.UptimeSeconds > MaxInteger:
		return badField("uptime_seconds", "heartbeat: uptime_seconds must be 0 to %d", int64(MaxInteger))
	case !text.IsPrintable(h.BootID, MaxSession):
		return badField("boot_id", "heartbeat: boot_id must be at most %d printable ASCII characters", MaxSession)
	case !text.IsPrintable(h.Fault, MaxFault):
		return badField("fault", "heartbeat: fault must be at most %d printable ASCII characters", MaxFault)
	case h.Driver != "" && !inventory.ValidDrivers(h.Driver):
		return badField("driver", "heartbeat: driver must be names of A-Z a-z 0-9 _ - separated by commas, at most %d characters", MaxWorkloadKind)
	case !text.IsPrintable(h.DriverFault, MaxFault):
		return badField("driver_fault", "heartbeat: driver_fault must be at most %d printable ASCII characters", MaxFault)
	case h.Phase != PhaseReady:
		return badField("phase", "heartbeat: phase must be %q", PhaseReady)
	}
	if h.Health != nil {
		if err := h.Health.Validate(); err != nil {
			return err
		}
	}
	return CheckWorkloads(h.Workloads)
}

// CheckWorkloads checks the workloads that a node reported.
func CheckWorkloads(list []task.Workload) error {
	if len(list) > MaxWorkloads {
		return badField("workloads", "heartbeat: workloads has more than %d entries", MaxWorkloads)
	}
	for _, w := range list {
		if w.Name == "" || !text.IsPrintable(w.Name, MaxWorkloadName) || !text.IsToken(w.Kind, MaxWorkloadKind, "_-") {
			return badField("workloads", "heartbeat: a workload's name must be 1 to %d printable ASCII characters and its kind 1 to %d of A-Z a-z 0-9 _ -",
				MaxWorkloadName, MaxWorkloadKind)
		}
		if !text.IsPrintable(w.Warning, MaxWorkloadWarning) {
			return badField("workloads", "heartbeat: a workload's warning must be at most %d printable ASCII characters", MaxWorkloadWarning)
		}
	}
	return nil
}

// isNonce accepts only the canonical encoding: the agent compares text, not
// bytes.
func isNonce(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(raw) == NonceBytes && base64.RawURLEncoding.EncodeToString(raw) == s
}

func badField(name, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason("bad_" + name)
}
