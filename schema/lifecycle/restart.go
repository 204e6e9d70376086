package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/text"
)

// flags are the flags of the command that starts the plan with its options again, each after
// a space. They leave out the force of a terminate or a remove, so that the command is refused
// while workloads run, and the SSH keys of a machine, which the command reads from files.
func (p Plan) flags(o Options) string {
	var f commandFlags
	drain := p.phase(PhaseDrain)
	switch p.Action {
	case ActionDrain:
		f.set("cordon-only", drain == nil)
	case ActionRetire:
		f.set("drain", drain != nil)
		if drain == nil && p.phase(PhaseIdle) == nil {
			f.set("force", true)
			f.value("reason", ReasonPlaceholder)
		}
	case ActionReactivate:
		f.set("new-identity", o.NewIdentity)
	case ActionProvision:
		f.machine(o.Machine)
	case ActionUpgradeAgent:
		f.value("version", o.AgentVersion)
		f.set("downgrade", o.Downgrade)
	case ActionRecover:
		f.repair(o.Recovery)
	}
	if drain != nil && drain.Budget != DefaultDrainTimeout+drainGrace {
		f.value("deadline", (drain.Budget - drainGrace).String())
	}
	return f.String()
}

// commandFlags are the flags of a command.
type commandFlags struct{ strings.Builder }

// set adds a flag without a value.
func (f *commandFlags) set(name string, on bool) {
	if on {
		f.WriteString(" --" + name)
	}
}

// value adds a flag with a value, unless that is empty.
func (f *commandFlags) value(name, value string) {
	if value == "" {
		return
	}
	if !text.IsToken(value, len(value), "-_.,:/@") {
		value = text.ShellQuote(value)
	}
	f.WriteString(" --" + name + " " + value)
}

func (f *commandFlags) machine(o machine.Options) {
	f.value("provider-region", o.Region)
	f.value("type", o.Type)
	f.value("image", o.Image)
	f.set("spot", o.Spot)
}

// repair adds the flags of a recover. The command climbs the same rungs, whatever fault they
// followed from.
func (f *commandFlags) repair(r recovery.Request) {
	if rungs := Rungs(r); !slices.Equal(rungs, Rungs(recovery.Request{})) {
		f.value("rung", joined(rungs))
	}
	f.value("approve", joined(r.Approve))
	f.value("gpu", strings.Join(r.GPUs, ","))
	if r.RebootWaitSeconds > 0 {
		f.value("reboot-wait", (time.Duration(r.RebootWaitSeconds) * time.Second).String())
	}
}

func joined(rungs []recovery.Rung) string {
	names := make([]string, 0, len(rungs))
	for _, r := range rungs {
		names = append(names, string(r))
	}
	return strings.Join(names, ",")
}
