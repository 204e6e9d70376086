package lifecycle

import (
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Candidate is what decides whether an action may start on a node, apart from the
// operations that run on it.
type Candidate struct {
	Host  string
	State NodeState
	// Instance is the state of the node's machine.
	Instance InstanceState
	// Provider is the node's provider, and Creates whether it creates machines.
	Provider string
	Creates  bool
	// Workloads are the names of the workloads in the node's last heartbeat.
	Workloads []string
}

// Admit returns the plan of the action when it may start on the node, and otherwise the
// reason as KindInvalidRequest or KindNodeInUse.
func (c Candidate) Admit(a Action, o Options) (Plan, error) {
	p, err := CheckStart(a, c.State)
	switch {
	case err != nil:
	case a == ActionProvision && c.Instance == InstanceRunning:
		err = schema.NewError(schema.KindInvalidRequest, "node %s is already provisioned: its instance is running", c.Host).
			WithReason("already_provisioned").WithNext("gpuaas node show " + c.Host)
	case a == ActionProvision && c.State == NodeRegistered && !c.Creates:
		err = schema.NewError(schema.KindInvalidRequest, "node %s is not enrolled, and its provider %q creates no machines", c.Host, c.Provider).
			WithReason("not_enrolled").WithNext("gpuaas node enroll " + c.Host)
	case len(c.Workloads) == 0 || o.Force:
	case a == ActionRetire && !o.Drain:
		err = c.inUse("gpuaas node retire " + c.Host + " --drain")
	case a == ActionRemove:
		err = c.inUse("gpuaas node reactivate " + c.Host + ", then gpuaas node retire " + c.Host + " --drain; if the machine is gone: gpuaas node remove " + c.Host + " --force")
	}
	return p, err
}

func (c Candidate) inUse(next string) error {
	return schema.NewError(schema.KindNodeInUse, "node %s runs workloads: %s", c.Host, strings.Join(c.Workloads, ", ")).WithNext(next)
}
