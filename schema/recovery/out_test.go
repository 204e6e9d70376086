package recovery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestSlowQuarantines: a false reason on one node after the other, too slow for the breaker, does not
// take more nodes out of service than max_out allows. Budgets do not stop it: a quarantine is short.
func TestSlowQuarantines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 1000)
	w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) {
		return 10 * time.Second, recovery.OutcomeNotCured
	}
	for i := range 200 {
		rma := condition("gpu_ecc", fmt.Sprintf("Reason%d", i), health.RepairRMA, time.Time{})
		rma.Component = "GPU-1"
		w.fail((i*7)%1000, rma)
		w.round(40 * time.Second)
		w.quarantine()
	}
	for range 10 {
		w.round(40 * time.Second)
		w.quarantine()
	}
	assert.Len(t, w.begun, 20)
	assert.Zero(t, w.breaker.OpenSince)
	last := w.round(time.Minute)
	require.Equal(t, 180, brakes(last)[recovery.BrakeBudget])
	assert.Contains(t, decision(last, "gpu-0350").Why, "max_out of the fleet is used up: health recovery quarantined 20 nodes and repairs 0 now, and 20 may be out of service: "+
		"release the quarantined nodes, or raise max_out in the policy")

	w.out -= 2 // a person released two
	w.round(time.Minute)
	w.quarantine()
	w.round(time.Minute)
	assert.Len(t, w.begun, 22)
}

// quarantine takes the nodes whose repair did not cure them out of service.
func (w *world) quarantine() {
	for i, e := range w.ends {
		if e.outcome == recovery.OutcomeNotCured && w.nodes[i].State == "active" {
			w.nodes[i].State, w.nodes[i].Held = "quarantined", "the node is quarantined"
			w.out++
		}
	}
	w.finish()
}

// TestMaxOut: the nodes that are out of service and the repairs that run count together. A policy
// without a limit has none.
func TestMaxOut(t *testing.T) {
	t.Parallel()
	one := []recovery.Budget{{Scope: recovery.ScopeRack, Count: 3, Percent: 100}}
	for name, c := range map[string]struct {
		limits    []recovery.Budget
		out, busy int
		why       string // empty: the repair starts
	}{
		"no limit":         {nil, 19, 0, ""},
		"below":            {one, 2, 0, ""},
		"used up":          {one, 3, 0, "max_out of rack r00 is used up"},
		"with the running": {one, 2, 1, "health recovery quarantined 2 nodes and repairs 1 now, and 3 may be out of service"},
		"none":             {[]recovery.Budget{{Scope: recovery.ScopeRack, Percent: 10}}, 0, 0, "max_out of rack r00 is 0 (count 0, percent 10): raise it"},
		"malformed":        {[]recovery.Budget{{Scope: recovery.ScopeRack, Count: 3, Percent: -4}}, 0, 0, "max_out of rack r00 is malformed"},
		"at least three":   {[]recovery.Budget{{Scope: recovery.ScopeRack, Count: 9, Percent: 4}}, 2, 0, ""},
		"not four":         {[]recovery.Budget{{Scope: recovery.ScopeRack, Count: 9, Percent: 4}}, 3, 0, "and 3 may be out of service"},
		"one":              {[]recovery.Budget{{Scope: recovery.ScopeRack, Count: 1, Percent: 100}}, 1, 0, "and 1 may be out of service"},
		"negative":         {one, -1, 0, "how many nodes of rack r00 are out of service is not known"},
		"no such scope":    {[]recovery.Budget{{Scope: "planet", Count: 3, Percent: 4}}, 0, 0, "which does not exist"},
	} {
		p := armed()
		p.MaxOut = c.limits
		p.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 5, Percent: 10}}
		f := fleet(now(), 100, failing(1, ago(hour)))
		for i := range f.Sizes {
			if f.Sizes[i].Key == "r00" {
				f.Sizes[i].Out, f.Sizes[i].Busy = c.out, c.busy
			}
		}
		d := decision(recovery.Decide(p, f), "gpu-0001")
		if c.why == "" {
			assert.Empty(t, d.Brake, "%s: %s", name, d.Why)
			continue
		}
		assert.Equal(t, recovery.BrakeBudget, d.Brake, name)
		assert.Contains(t, d.Why, c.why, name)
	}
}

// TestFiguresThatAreNotKnown: a limit allows nothing without the figures that it compares.
func TestFiguresThatAreNotKnown(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 5, Percent: 10}}
	p.MaxOut = []recovery.Budget{{Scope: recovery.ScopeRack, Count: 3, Percent: 100}}
	why := func(change func(*recovery.Fleet)) string {
		f := fleet(now(), 100, failing(1, ago(hour)))
		change(&f)
		d := decision(recovery.Decide(p, f), "gpu-0001")
		require.Equal(t, recovery.BrakeBudget, d.Brake)
		return d.Why
	}
	assert.Contains(t, why(func(f *recovery.Fleet) {
		f.Sizes = slices.DeleteFunc(f.Sizes, func(s recovery.Size) bool { return s.Key == "r00" })
	}), "how many nodes of rack r00 are out of service is not known")
	assert.Contains(t, why(func(f *recovery.Fleet) { f.Sizes[0].Busy = -1 }), "the size of the fleet is not known")
}
