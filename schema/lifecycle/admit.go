package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Candidate is what decides whether an action may start on a node, apart from the
// operations that run on it.
type Candidate struct {
	Host  string
	State NodeState
	// Instance is the state of the node's machine.
	Instance InstanceState
	// OpenLedger is set if the node's ledger has entries that are not released. It is also set if
	// that is not known.
	OpenLedger bool
	// Provider is the node's provider.
	Provider machine.Info
	// Workloads are the names of the workloads in the node's last heartbeat.
	Workloads []string
	// Lock is the lock of the node's identity, nil without one.
	Lock *trust.IdentityLock
}

// Admit returns the plan of the action when it may start on the node, and otherwise the
// reason as KindInvalidRequest or KindNodeInUse.
func (c Candidate) Admit(a Action, o Options) (Plan, error) {
	p, err := CheckStart(a, c.State)
	p = p.On(c.Provider)
	switch {
	case err != nil && c.Provider.Creates:
		if refused, ok := PlanOf(a, o); ok {
			err = refused.refusal(c.State, ActionProvision)
		}
	case err != nil:
	case a == ActionProvision && c.Instance == InstanceRunning:
		err = schema.NewError(schema.KindInvalidRequest, "node %s is already provisioned: its instance is running", c.Host).
			WithReason("already_provisioned").WithNext("gpuaas node show " + c.Host)
	case a == ActionProvision && !c.State.Enrolled() && !c.Provider.Creates:
		err = schema.NewError(schema.KindInvalidRequest, "node %s is not enrolled, and its provider %q creates no machines", c.Host, c.Provider.Name).
			WithReason("not_enrolled").WithNext("gpuaas node enroll " + c.Host)
	case a == ActionProvision && c.State.Enrolled() && c.Provider.Creates:
		err = schema.NewError(schema.KindInvalidRequest, "node %s is enrolled, so its machine exists: provider %q would create another one", c.Host, c.Provider.Name).
			WithReason("already_enrolled").WithNext("to replace the host by a machine of the provider: gpuaas node retire " + c.Host + ", then gpuaas node remove " + c.Host + ", and register it again")
	case o.Machine.Given() && !c.Provider.Creates:
		err = schema.NewError(schema.KindInvalidRequest, "provider %q creates no machines, so there is none to choose", c.Provider.Name).
			WithReason("no_machine_options")
	case a == ActionProvision && c.Provider.Disabled != "":
		err = schema.NewError(schema.KindInvalidRequest, "provider %q is disabled: %s", c.Provider.Name, c.Provider.Disabled).
			WithReason(machine.ReasonDisabled).WithNext("gpuaas provider show " + c.Provider.Name)
	case a == ActionProvision && c.Provider.Check(o.Machine) != nil:
		err = c.Provider.Check(o.Machine)
	case a == ActionRecover && !c.Provider.Creates && slices.Contains(Rungs(o.Recovery), recovery.RungReplace):
		err = schema.NewError(schema.KindInvalidRequest, "provider %q creates no machines, so the rung replace is not possible for node %s", c.Provider.Name, c.Host).
			WithReason("no_created_machine").WithNext("leave out replace, for example: gpuaas node recover " + c.Host + " --rung reboot,quarantine --dry-run")
	case a == ActionTerminate && c.noMachine() != nil:
		err = c.noMachine()
	case c.Lock != nil && needsAgent(a, o):
		err = c.locked(a)
	case len(c.Workloads) == 0 || o.Force:
	case a == ActionRetire && !o.Drain:
		err = c.inUse("gpuaas node retire " + c.Host + " --drain")
	case a == ActionTerminate:
		err = c.inUse(c.terminateInUse())
	case a == ActionRemove:
		err = c.inUse("gpuaas node reactivate " + c.Host + ", then gpuaas node retire " + c.Host + " --drain; if the machine is gone: gpuaas node remove " + c.Host + " --force")
	}
	return p, err
}

func (c Candidate) inUse(next string) error {
	return schema.NewError(schema.KindNodeInUse, "node %s runs workloads: %s", c.Host, strings.Join(c.Workloads, ", ")).WithNext(next)
}

// terminateInUse is the next step of a termination that is refused because of workloads.
func (c Candidate) terminateInUse() string {
	force := "gpuaas node terminate " + c.Host + " --force --reason " + ReasonPlaceholder
	if _, err := CheckStart(ActionDrain, c.State); err != nil {
		return force
	}
	return "gpuaas node drain " + c.Host + ", then gpuaas node terminate " + c.Host + "; to end the workloads with the machine: " + force
}

// noMachine refuses a termination of a node without a machine that its provider created. A node
// that is not enrolled may be terminated without an instance, too: a forced teardown has ended the
// instance, and the ledger still has its machine. The machine of an enrolled node without an
// instance is another one, which a termination would take from the node.
func (c Candidate) noMachine() error {
	next := "gpuaas node retire " + c.Host
	if _, err := CheckStart(ActionRemove, c.State); err == nil {
		next = "gpuaas node remove " + c.Host
	}
	switch {
	case !c.Provider.Creates:
		return schema.NewError(schema.KindInvalidRequest, "provider %q creates no machines, so node %s has none to terminate", c.Provider.Name, c.Host).
			WithReason("no_created_machine").WithNext(next)
	case !c.Instance.Live() && (!c.OpenLedger || c.State.Enrolled()):
		return schema.NewError(schema.KindInvalidRequest, "node %s has no machine of provider %q to terminate", c.Host, c.Provider.Name).
			WithReason("no_instance").WithNext(next)
	}
	return nil
}

// locked refuses an action that needs the agent. A retire of a machine that is gone can do
// without it.
func (c Candidate) locked(a Action) error {
	e := IdentityLocked(c.Host, *c.Lock)
	if a == ActionRetire {
		e.Next += "; if the machine is gone: gpuaas node retire " + c.Host + " --force --reason " + ReasonPlaceholder
	}
	return e
}

// needsAgent reports whether the action needs requests of the node with its present identity.
func needsAgent(a Action, o Options) bool {
	p, _ := PlanOf(a, o)
	return p.Holds && slices.ContainsFunc(p.Phases, func(s PhaseSpec) bool { return s.WaitingOn == AttentionAgent && !s.BestEffort })
}

// IdentityLocked is the error of what needs a node whose identity is locked: it receives no
// tasks. Its reason is schema.ReasonNodeLocked, and its next step ends the lock.
func IdentityLocked(host string, l trust.IdentityLock) *schema.Error {
	return schema.NewError(schema.KindInvalidRequest, "node %s receives no tasks: %s (since %s)", host, l.Message(), l.Since.UTC().Format(time.RFC3339)).
		WithReason(schema.ReasonNodeLocked).WithNext(l.Next(host))
}
