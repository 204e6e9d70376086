package device

import (
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema/health"
)

// Action is the recovery action of a GPU: what its driver says must be done. It decides before any
// table of codes.
type Action string

// The recovery actions, with their numbers in NVML (nvmlDeviceGpuRecoveryAction_t).
const (
	ActionNone         Action = "none"          // 0
	ActionReset        Action = "reset"         // 1
	ActionReboot       Action = "reboot"        // 2
	ActionDrainP2P     Action = "drain_p2p"     // 3: stop what uses peer access
	ActionDrainReset   Action = "drain_reset"   // 4: stop what uses peer access, then reset
	ActionIMEX         Action = "imex_domain"   // 5: recover the IMEX domain, which has other nodes
	ActionBusReset     Action = "bus_reset"     // 6: reset the PCIe bus of the GPU
	ActionSystemReboot Action = "system_reboot" // 7
	ActionOther        Action = "other"         // an action that this version does not have
)

// actions returns the actions by their numbers in NVML.
func actions() []Action {
	return []Action{ActionNone, ActionReset, ActionReboot, ActionDrainP2P, ActionDrainReset, ActionIMEX, ActionBusReset, ActionSystemReboot}
}

// ParseAction returns the action that nvidia-smi prints for gpu_recovery_action ("None", "Reset",
// "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset Required") or its number in NVML. It returns ""
// if the driver does not have the figure ("N/A", "[Not Supported]"), and ActionOther for other texts.
// nvidia-smi prints "[GPU requires reset]" instead of any figure of a GPU that needs a reset.
func ParseAction(text string) Action {
	folded := strings.ToLower(strings.Trim(strings.TrimSpace(text), "[]"))
	if folded == "" || folded == "n/a" || folded == "not supported" {
		return ""
	}
	if number, err := strconv.ParseUint(folded, 0, 8); err == nil {
		if int(number) < len(actions()) {
			return actions()[number]
		}
		return ActionOther
	}
	return namedAction(folded)
}

func namedAction(folded string) Action {
	has := func(words ...string) bool {
		for _, w := range words {
			if !strings.Contains(folded, w) {
				return false
			}
		}
		return true
	}
	switch {
	case folded == "none":
		return ActionNone
	case has("imex"):
		return ActionIMEX
	case has("bus", "reset"):
		return ActionBusReset
	case has("drain", "reset"):
		return ActionDrainReset
	case has("drain"):
		return ActionDrainP2P
	case has("system", "reboot"):
		return ActionSystemReboot
	case has("reboot"):
		return ActionReboot
	case has("reset"):
		return ActionReset
	}
	return ActionOther
}

// Repair returns the repair that the action needs. An IMEX domain spans nodes, so no repair of one
// node recovers it.
func (a Action) Repair() health.Repair {
	switch a {
	case "", ActionNone:
		return health.RepairNone
	case ActionReset, ActionDrainP2P, ActionDrainReset:
		return health.RepairResetGPU
	case ActionReboot, ActionBusReset, ActionSystemReboot:
		return health.RepairReboot
	}
	return health.RepairObserve
}

// changedAction reads the new action in the message of XID 154: "GPU recovery action changed from 0x0
// (None) to 0x4 (Drain and Reset)".
func changedAction(message string) Action {
	_, change, _ := strings.Cut(message, "recovery action changed from ")
	_, to, ok := strings.Cut(change, " to ")
	if !ok {
		return ActionOther
	}
	number, rest, _ := strings.Cut(to, " ")
	if a := ParseAction(number); a != ActionOther {
		return a
	}
	return ParseAction(strings.Trim(rest, "() "))
}
