package recovery

import "time"

// Default returns the policy of a new installation: monitor mode, with limits that suit fleets from a
// few nodes to some thousands. Nodes with GPUs are reset or rebooted, never replaced.
func Default() Policy {
	minutes := func(n int) Duration { return Duration(time.Duration(n) * time.Minute) }
	p := Policy{
		Mode:           ModeMonitor,
		Ladders:        []Ladder{{Rungs: Rungs()}},
		ReplaceClasses: []string{"ephemeral", "spot"},
		Budgets: []Budget{
			{Scope: ScopeFleet, Count: 5, Percent: 10},
			{Scope: ScopeRegion, Count: 5, Percent: 10},
			{Scope: ScopeSKU, Count: 3, Percent: 20},
			{Scope: ScopeRack, Count: 1, Percent: 34},
		},
		MaxOut:    []Budget{{Scope: ScopeFleet, Count: 20, Percent: 10}},
		Breaker:   Breaker{Nodes: 20, Percent: 10, Within: minutes(10), HalfOpenAfter: minutes(30)},
		Suspect:   Suspect{Percent: 20, Within: minutes(24 * 60)},
		Rack:      RackRule{Percent: 50, Nodes: MinCorrelated},
		BootGrace: minutes(15),
		Samples:   3,
		Threshold: minutes(10),
		Thresholds: map[string]Duration{
			"node_ready": minutes(5), "disk_pressure": minutes(30),
			"gpu_thermal": minutes(30), "host_disk": minutes(30), "host_clock": minutes(30), "host_memory": minutes(30),
			"host_services": minutes(5),
			// Events, and the word of the driver, do not become truer with time.
			"gpu_xid": 0, "gpu_sxid": 0, "gpu_ecc": 0, "gpu_recovery_action": 0, "host_kernel": 0,
		},
		Cooldown: minutes(30),
		Flapping: Flapping{Repairs: 5, Within: minutes(7 * 24 * 60)},
	}
	return p.filled()
}
