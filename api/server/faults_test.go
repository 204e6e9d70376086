package server

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Each dependency that makes the API unready is a fault of the control plane, once.
func TestUnavailableDependenciesAreFaults(t *testing.T) {
	t.Parallel()
	temporal := wire.ControlPlaneFault{Component: "temporal", Reason: "service_unavailable", Message: "no schedule"}
	sealed := schema.NewError(schema.KindServiceUnavailable, "Vault at v is sealed").WithNext("unseal Vault")
	got := withUnavailable([]wire.ControlPlaneFault{temporal}, map[string]error{"vault": sealed, "temporal": errors.New("down")})
	assert.Equal(t, []wire.ControlPlaneFault{temporal,
		{Component: "vault", Reason: "service_unavailable", Message: "Vault at v is sealed", Next: "unseal Vault"}}, got)
	assert.Empty(t, withUnavailable(nil, nil))
}

func TestFaultsOfComponents(t *testing.T) {
	t.Parallel()
	assert.Empty(t, signerFault(nil))
	assert.Empty(t, faultOf("clock", nil))
	missing := schema.NewError(schema.KindServiceUnavailable, "there is no verifier set yet").WithNext("gpuaas admin setup")
	assert.Equal(t, []wire.ControlPlaneFault{{Component: "task-signer", Reason: "service_unavailable",
		Message: "there is no verifier set yet", Next: "gpuaas admin setup"}}, signerFault(missing))
	assert.Equal(t, []wire.ControlPlaneFault{{Component: "clock", Reason: "clock_skew", Message: "it differs"}},
		faultOf("clock", schema.NewError(schema.KindServiceUnavailable, "it differs").WithReason("clock_skew")))
}

// Requests that follow each other closely read Temporal once.
func TestFaultsAreReadOnce(t *testing.T) {
	t.Parallel()
	var recent recentFaults
	reads := 0
	read := func() []wire.ControlPlaneFault {
		reads++
		return []wire.ControlPlaneFault{{Component: "worker"}}
	}
	for range 3 {
		assert.Len(t, recent.get(read), 1)
	}
	assert.Equal(t, 1, reads)
	recent.readAt = recent.readAt.Add(-2 * faultsFresh)
	recent.get(read)
	assert.Equal(t, 2, reads)
}

// silent is the progress of a rotation that waits for a node without a heartbeat, and for one
// whose last heartbeat was at a time.
func silent(at time.Time) rotation.Progress {
	return rotation.Progress{Nodes: 2, Waiting: []rotation.Waiting{{Host: "gpu-1"}, {Host: "gpu-2", LastHeartbeatAt: &at}}}
}

// TestRotationFaults: gpuaas stuck shows a rotation that needs an operator, with the reason and
// the next command, and no other one.
func TestRotationFaults(t *testing.T) {
	t.Parallel()
	now := time.Now()
	waiting := rotation.Progress{Nodes: 9, Confirmed: 2, Waived: 1, Waiting: []rotation.Waiting{{Host: "gpu-1"}, {Host: "gpu-2"}, {Host: "gpu-3"},
		{Host: "gpu-4"}, {Host: "gpu-5"}, {Host: "gpu-6"}}}
	for name, c := range map[string]struct {
		phase         rotation.Phase
		change        func(*rotation.Rotation)
		progress      rotation.Progress
		reason, holds string
	}{
		"working":      {rotation.Activate, func(*rotation.Rotation) {}, waiting, "", ""},
		"slow":         {rotation.Activate, func(r *rotation.Rotation) { r.PhaseSince = now.Add(-time.Hour) }, waiting, "nodes_unconfirmed", "6 nodes: gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, …"},
		"offline":      {rotation.Activate, func(r *rotation.Rotation) { r.PhaseSince = now.Add(-time.Hour) }, silent(now.Add(-time.Hour)), "nodes_unconfirmed", "rotate waive --offline"},
		"online":       {rotation.Activate, func(r *rotation.Rotation) { r.PhaseSince = now.Add(-time.Hour) }, silent(now.Add(-time.Minute)), "nodes_unconfirmed", "gpuaas doctor gpu-2; to continue without the node: gpuaas rotate waive --node gpu-2"},
		"stalled":      {rotation.Stage, func(r *rotation.Rotation) { r.CheckedAt = now.Add(-time.Hour) }, waiting, "stalled", "no worker has looked"},
		"failing":      {rotation.Stage, func(r *rotation.Rotation) { r.Failure = "Vault denies it" }, waiting, "failing", "Vault denies it"},
		"retired":      {rotation.Stage, func(r *rotation.Rotation) { r.Failure = rotation.FailureOf(rotation.ErrCARetired("g2")) }, waiting, "failing", "can only be rolled back" + "gpuaas rotate rollback --reason TEXT"},
		"paused":       {rotation.Stage, func(r *rotation.Rotation) { r.Paused = true }, waiting, "paused", "rotate resume"},
		"approval":     {rotation.Grace, func(*rotation.Rotation) {}, rotation.Progress{}, "approval_missing", "rotate approve"},
		"grace period": {rotation.Grace, func(r *rotation.Rotation) { r.GraceSeconds = 3600 }, rotation.Progress{}, "", ""},
	} {
		for _, k := range rotation.Kinds() {
			r := rotation.Begin(k, "g1", 0)
			r.Phase, r.PhaseSince, r.CheckedAt, r.SetVersion, r.CA = c.phase, now, now, 3, rotation.CA{Bundle: "b", Issuer: "CN=ca"}
			c.change(&r)
			faults := rotationFault(rotation.Describe(r, c.progress, now), now)
			if c.reason == "" {
				assert.Empty(t, faults, "%s %s", name, k)
				continue
			}
			if assert.Len(t, faults, 1, "%s %s", name, k) {
				assert.Equal(t, c.reason, faults[0].Reason, name)
				assert.Contains(t, faults[0].Message+faults[0].Next, c.holds, name)
				assert.Contains(t, faults[0].Message, "the rotation of "+string(k)+" is in phase "+string(c.phase))
			}
		}
	}
}
