package recovery_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

const (
	hgx       = "hgx-h100"
	rackNodes = 20
)

// now is the time of the first round of tests.
func now() time.Time { return time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC) } // a Monday

// armed returns the default policy in armed mode.
func armed() recovery.Policy {
	p := recovery.Default()
	p.Mode = recovery.ModeArmed
	return p
}

// node returns a GPU node without a fault. Numbers 0 to 19 are in rack r00, and so on.
func node(i int) recovery.Node {
	return recovery.Node{
		NodeID: fmt.Sprintf("id-%04d", i), Host: fmt.Sprintf("gpu-%04d", i), SKU: hgx, Region: "us-1",
		Rack: fmt.Sprintf("r%02d", i/rackNodes), Class: "persistent", GPUs: 8, State: "active",
		Phase: health.PhaseHealthy, Conditions: []health.Condition{{Checker: "gpu_count", Status: health.Healthy, Reason: "Match", Samples: 9}},
	}
}

// failing returns the node with a fault that needs a reboot.
func failing(i int, since time.Time) recovery.Node {
	return with(node(i), condition("node_ready", "KubeletNotReady", health.RepairReboot, since))
}

func with(n recovery.Node, c ...health.Condition) recovery.Node {
	n.Conditions = append(slices.Clone(n.Conditions), c...)
	return n
}

func condition(checker, reason string, repair health.Repair, since time.Time) health.Condition {
	return health.Condition{Checker: checker, Status: health.Unhealthy, Reason: reason, Repair: repair, Since: since, Samples: 10}
}

// fleet returns a fleet of total nodes of one SKU in one region, of which nodes are listed.
func fleet(at time.Time, total int, nodes ...recovery.Node) recovery.Fleet {
	f := recovery.Fleet{At: at, Nodes: nodes}
	size := func(s recovery.Scope, key string, n int) {
		f.Sizes = append(f.Sizes, recovery.Size{Scope: s, Key: key, Nodes: n, GPUNodes: n})
	}
	size(recovery.ScopeFleet, "", total)
	size(recovery.ScopeRegion, "us-1", total)
	size(recovery.ScopeSKU, hgx, total)
	for rack := range (total + rackNodes - 1) / rackNodes {
		size(recovery.ScopeRack, fmt.Sprintf("r%02d", rack), min(rackNodes, total-rack*rackNodes))
	}
	return f
}

// decision returns the decision about a node.
func decision(r recovery.Result, host string) recovery.Decision {
	i := slices.IndexFunc(r.Decisions, func(d recovery.Decision) bool { return d.Host == host })
	if i < 0 {
		return recovery.Decision{}
	}
	return r.Decisions[i]
}

// acting returns the hosts whose repair starts.
func acting(r recovery.Result) (hosts []string) {
	for _, d := range r.Decisions {
		if d.Acts() {
			hosts = append(hosts, d.Host)
		}
	}
	return hosts
}

// brakes counts the decisions by brake.
func brakes(r recovery.Result) map[recovery.Brake]int {
	counts := map[recovery.Brake]int{}
	for _, d := range r.Decisions {
		counts[d.Brake]++
	}
	return counts
}
