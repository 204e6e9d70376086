package activities

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Repairs stores what a repair does to a node.
type Repairs interface {
	// Boot returns what the node's last heartbeat says of its boot. KindInvalidRequest, reason
	// node_locked, while the node's identity is locked.
	Boot(ctx context.Context, nodeID string) (NodeBoot, error)
	// Conditions returns the node's present conditions. One that is not reported anymore is unknown.
	Conditions(ctx context.Context, nodeID string) ([]health.Condition, error)
	// RecordAttempt stores a rung of the operation, under its fence. A repeated call replaces the
	// rung's row, unless that has an outcome and the call has none. It returns the boot that the rung
	// ends: that of its first call. A run that was reset to before the rung finds the next boot already.
	RecordAttempt(ctx context.Context, f Fence, a recovery.Attempt) (bootBefore string, err error)
	// BeginReset records, before the provider's call, that the operation's step asks it for a hard
	// reset. began is false if a call of the step did so before: whether the machine was reset is then
	// not known. KindFenced if the operation ended, undoes its work or does not hold the node.
	BeginReset(ctx context.Context, f Fence, step string) (began bool, err error)
	// ForgetReset deletes the record of a reset that certainly had no effect, so that it can be
	// repeated.
	ForgetReset(ctx context.Context, f Fence, step string) error
	// ReplaceInstance ends the node's instance, whose machine is deleted, with the identity of the
	// machine, and returns the next instance, whose machine does not exist yet. A repeated call returns
	// the same one. KindInvalidRequest, reason resources_open, while the ledger has an open entry and
	// the teardown was not forced.
	ReplaceInstance(ctx context.Context, f Fence, instanceID string) (lifecycle.Instance, error)
	// KeepEvidence stores the evidence of the operation's repair once, for the vendor of the hardware.
	KeepEvidence(ctx context.Context, f Fence, fault recovery.Fault, attempts []recovery.Attempt) error
}

// NodeBoot is what the node's last heartbeat says of its boot.
type NodeBoot struct {
	BootID      string `json:"boot_id,omitempty"`
	Incarnation int64  `json:"incarnation"`
	// Age is the time since the heartbeat, by the database's clock, negative without one. Uptime is
	// how long the node had run then.
	Age    time.Duration `json:"age"`
	Uptime time.Duration `json:"uptime"`
	// Deaf is set while the node API cannot have received heartbeats for two minutes: an old one says
	// nothing about the node then.
	Deaf bool `json:"deaf,omitempty"`
}

// silent reports whether the node's agent is not connected. It fails with KindServiceUnavailable while
// that is not known.
func (b NodeBoot) silent() (bool, error) {
	silent := b.Age < 0 || b.Age > AgentFresh
	if silent && b.Deaf {
		return false, ErrDeaf()
	}
	return silent, nil
}

// ErrDeaf is the error of a question about a node's heartbeats while the node API receives none.
func ErrDeaf() error {
	return schema.NewError(schema.KindServiceUnavailable, "the node API receives no heartbeats, so that no node seems to send any").
		WithReason(lifecycle.ReasonNodeAPIDown).WithNext("gpuaas stuck")
}

// Repair has the activities of a repair.
type Repair struct {
	Repairs   Repairs
	Providers map[string]Source // by name
	// OnAttempt observes each recorded end of a rung. nil observes nothing.
	OnAttempt func(recovery.Attempt)
}

// RepairFacts are what a repair reads of its node.
type RepairFacts struct {
	BootID string `json:"boot_id,omitempty"`
	// Silent is set if the node's agent is not connected.
	Silent bool `json:"silent,omitempty"`
	// HeartbeatAge is the age of the newest heartbeat. Directly after a restart, it is one of the boot
	// that has ended.
	HeartbeatAge time.Duration `json:"heartbeat_age,omitempty"`
	// Healed is set if the condition for which the node is repaired is healthy now.
	Healed bool `json:"healed,omitempty"`
}

// ReadRepair reads the node's boot and whether the fault is still there. A heartbeat ends a silence.
// Any other fault has ended if a condition of its checker is healthy, that of its component or that of
// the whole node: a checker has none of a component without a fault. It has not while one of two
// reporters still finds it, or cannot look. The boot ID is reported by the node: one that is no plain
// word counts as not known.
func (r *Repair) ReadRepair(ctx context.Context, nodeID string, f recovery.Fault) (RepairFacts, error) {
	boot, err := r.Repairs.Boot(ctx, nodeID)
	if err != nil {
		return RepairFacts{}, Fail(err)
	}
	facts := RepairFacts{BootID: plainBoot(boot.BootID), HeartbeatAge: max(0, boot.Age)}
	if facts.Silent, err = boot.silent(); err != nil {
		return RepairFacts{}, Fail(err)
	}
	switch f.Checker {
	case "":
		return facts, nil
	case health.CheckerHeartbeat:
		facts.Healed = !facts.Silent
		return facts, nil
	}
	conditions, err := r.Repairs.Conditions(ctx, nodeID)
	facts.Healed = healed(conditions, f)
	return facts, Fail(err)
}

// healed reports whether conditions show that a fault has ended.
func healed(conditions []health.Condition, f recovery.Fault) bool {
	healthy := false
	for _, c := range conditions {
		switch {
		case c.Checker != f.Checker:
		case c.Status == health.Healthy && (c.Component == "" || c.Component == f.Component):
			healthy = true
		case c.Component == f.Component:
			return false
		}
	}
	return healthy
}

// plainBoot returns a boot ID that a node reports, empty if it has not the form of one.
func plainBoot(id string) string {
	const longest = 64
	if !text.IsToken(id, longest, "-_.") {
		return ""
	}
	return id
}

// RebootInput is the input of AwaitReboot.
type RebootInput struct {
	NodeID string `json:"node_id"`
	// BootID is the boot that ends, empty if it is not known. Then a boot counts as another one if it
	// began after Since.
	BootID      string    `json:"boot_id,omitempty"`
	Incarnation int64     `json:"incarnation"`
	Since       time.Time `json:"since"`
}

// AwaitReboot returns the ID of the node's next boot. It fails with KindAgentSilent until a heartbeat
// of the same incarnation shows another one. Temporal retries the activity, so waiting adds no events
// to the history.
func (r *Repair) AwaitReboot(ctx context.Context, in RebootInput) (bootID string, err error) {
	boot, err := r.Repairs.Boot(ctx, in.NodeID)
	if err != nil {
		return "", Fail(err)
	}
	silent, err := boot.silent()
	if err != nil {
		return "", Fail(err)
	}
	id := plainBoot(boot.BootID)
	another := in.BootID != "" && id != "" && id != in.BootID
	if in.BootID == "" {
		another = boot.Age >= 0 && time.Since(in.Since) > boot.Age+boot.Uptime
	}
	switch {
	case boot.Incarnation != in.Incarnation:
		return "", Fail(schema.NewError(schema.KindAgentSilent, "the node enrolled again while it was restarted"))
	case silent:
		return "", Fail(schema.NewError(schema.KindAgentSilent, "the node is restarting: its agent sends no heartbeat"))
	case !another && boot.Deaf: // the heartbeat may be older than the restart
		return "", Fail(ErrDeaf())
	case !another:
		return "", Fail(schema.NewError(schema.KindAgentSilent, "the node still runs the boot that the restart should end"))
	}
	return id, nil
}

// RecordAttempt stores a rung of the operation; see Repairs.RecordAttempt.
func (r *Repair) RecordAttempt(ctx context.Context, f Fence, a recovery.Attempt) (bootBefore string, err error) {
	bootBefore, err = r.Repairs.RecordAttempt(ctx, f, a)
	if err == nil && !a.EndedAt.IsZero() && r.OnAttempt != nil {
		r.OnAttempt(a)
	}
	return bootBefore, Fail(err)
}

// ReplaceInput is the input of ReplaceInstance.
type ReplaceInput struct {
	Fence      Fence  `json:"fence"`
	InstanceID string `json:"instance_id"` // of the machine that was deleted
}

// ReplaceInstance ends an instance and begins the next one; see Repairs.ReplaceInstance.
func (r *Repair) ReplaceInstance(ctx context.Context, in ReplaceInput) (lifecycle.Instance, error) {
	next, err := r.Repairs.ReplaceInstance(ctx, in.Fence, in.InstanceID)
	return next, Fail(err)
}

// EvidenceInput is the input of KeepEvidence.
type EvidenceInput struct {
	Fence    Fence              `json:"fence"`
	Fault    recovery.Fault     `json:"fault,omitzero"`
	Attempts []recovery.Attempt `json:"attempts,omitempty"`
}

// KeepEvidence stores the evidence of the repair. A second run changes nothing.
func (r *Repair) KeepEvidence(ctx context.Context, in EvidenceInput) error {
	return Fail(r.Repairs.KeepEvidence(ctx, in.Fence, in.Fault, in.Attempts))
}

// ResetInput is the input of ResetMachine.
type ResetInput struct {
	MachineInput
	// Step identifies the reset within the operation: a decision to restart the node again is another
	// step.
	Step string `json:"step"`
}

// ResetMachine asks the provider for a hard reset of the node's machine once for the step. It
// switches on a machine that is off. If an earlier run of the step asked for the reset, it does not
// repeat it: that run may have succeeded, and the node's next boot ID shows whether it did.
func (r *Repair) ResetMachine(ctx context.Context, in ResetInput) error {
	source, ok := r.Providers[in.Instance.Provider]
	if !ok {
		return Fail(schema.NewError(schema.KindInvalidRequest, "this worker has no provider %q", in.Instance.Provider).
			WithReason(lifecycle.ReasonProviderUnknown).WithNext("start a worker that has the provider"))
	}
	ctx, done := uncanceled(ctx)
	defer done()
	found, err := source.Provider.Describe(ctx, machine.Ref{InstanceID: in.Instance.InstanceID, ExternalID: in.Instance.ExternalID,
		Host: in.Host, Region: in.Instance.Region})
	if err != nil {
		return Fail(err)
	}
	switch found.Phase {
	case machine.Stopped:
		return Fail(source.Provider.Power(ctx, found.Ref, machine.PowerOn))
	case machine.Running:
	default:
		return Fail(machine.Errorf(machine.ReasonFailed, "the machine of %s is %s: %s", in.Host, found.Phase, text.Line(found.Detail, maxDetail)))
	}
	began, err := r.Repairs.BeginReset(ctx, in.Fence, in.Step)
	if err != nil || !began {
		return Fail(err)
	}
	reset := source.Provider.Power(ctx, found.Ref, machine.PowerReset)
	if reset != nil && !machine.Is(reset, machine.ReasonAmbiguous) {
		if err := r.Repairs.ForgetReset(ctx, in.Fence, in.Step); err != nil {
			return Fail(err)
		}
	}
	return Fail(reset)
}
