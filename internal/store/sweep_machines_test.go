package store_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// sweep is a worker's sweep of the provider libvirt, whose machines are in memory.
type sweep struct {
	*env
	activities.Sweep
	site *recorder.Provider
}

func (e *env) sweep() *sweep {
	e.t.Helper()
	s := &sweep{env: e, site: recorder.New()}
	s.Sweep = activities.Sweep{Surplus: e.Surplus, Deletes: true, Providers: map[string]activities.Source{
		"libvirt": {Info: machines.Info{Name: "libvirt", Creates: true}, Provider: s.site}}}
	return s
}

// round runs the activity once.
func (s *sweep) round() (activities.SweepSummary, error) {
	s.t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(&s.Sweep)
	var got activities.SweepSummary
	result, err := env.ExecuteActivity(s.SweepMachines)
	if err == nil {
		err = result.Get(&got)
	}
	return got, err
}

// rounds runs the activity n times and returns the last summary.
func (s *sweep) rounds(n int) (got activities.SweepSummary) {
	s.t.Helper()
	for range n {
		var err error
		got, err = s.round()
		require.NoError(s.t, err)
	}
	return got
}

// later lets the grace period pass, and the time in which deletions count toward the limit.
func (s *sweep) later() {
	s.t.Helper()
	s.exec("UPDATE machine_leftovers SET first_seen = first_seen - make_interval(secs => $1), attempted_at = attempted_at - make_interval(secs => $1)",
		machines.SurplusGrace.Seconds()+1)
}

// provisioned claims a new node for a provisioning, which plans a machine.
func (s *sweep) provisioned() (wire.NodeView, activities.Claim) {
	s.t.Helper()
	n := s.register()
	s.exec("UPDATE nodes SET onboarding_mode = 'libvirt' WHERE node_id = $1", n.ID)
	c := s.claim(n.ID, lifecycle.ActionProvision)
	_, err := s.Store.Operations.Plan(s.t.Context(), c.Fence, activities.Resource{ResourceID: c.Instance.InstanceID, Kind: "instance", Provider: "libvirt"})
	require.NoError(s.t, err)
	return n, c
}

// appears makes a running machine with the owner tag.
func (s *sweep) appears(instanceID string) string {
	s.t.Helper()
	id := s.site.Site.Add(recorder.Record{Owner: instanceID, Host: "gpu"}).ID
	s.site.Site.Advance(id)
	return id
}

// created makes the machine of a claim and records it.
func (s *sweep) created(c activities.Claim) {
	s.t.Helper()
	id := s.appears(c.Instance.InstanceID)
	require.NoError(s.t, s.Store.Operations.Created(s.t.Context(), c.Fence, c.Instance.InstanceID, id))
}

// canceled ends the provisioning. A cancel that could not release the machine was forced.
func (s *sweep) canceled(c activities.Claim) {
	s.t.Helper()
	require.NoError(s.t, s.Finish(s.t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCanceled,
		Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated}))
}

// entry is the state of the ledger entry.
func (s *sweep) entry(c activities.Claim) string {
	s.t.Helper()
	return s.text("SELECT state FROM resources WHERE resource_id = $1", c.Instance.InstanceID)
}

// stored is the class of the stored surplus machine, "" without one.
func (s *sweep) stored(instanceID string) string {
	s.t.Helper()
	return s.text("SELECT coalesce(max(class), '') FROM machine_leftovers WHERE instance_id = $1 AND deleted_at IS NULL", instanceID)
}

// deletions is how often the provider was asked to delete a machine.
func (s *sweep) deletions() (n int) {
	for _, c := range s.site.Calls() {
		if c.Method == "delete" {
			n++
		}
	}
	return n
}

// TestSweepKeepsOwned: neither the machine of a live instance nor one of a node that an operation
// holds is a leftover, also if the operation that planned it failed, and another one claims the
// same instance again.
func TestSweepKeepsOwned(t *testing.T) {
	s := setup(t).sweep()
	ctx := t.Context()
	n, c := s.provisioned()
	s.created(c)
	owned := func() {
		t.Helper()
		got := s.rounds(1)
		require.Equal(t, activities.SweepSummary{Machines: 1}, got)
		require.Empty(t, s.stored(c.Instance.InstanceID))
	}
	owned()
	again := s.claim(n.ID, lifecycle.ActionProvision)
	require.Equal(t, c.Instance.InstanceID, again.Instance.InstanceID)
	owned()
	require.NoError(t, s.Finish(ctx, again.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeRegistered}))
	owned()
	remove := s.claim(n.ID, lifecycle.ActionRemove)
	require.NoError(t, s.Advance(ctx, remove.Fence, activities.Advance{Instance: lifecycle.InstanceTerminated}))
	owned()
	require.Zero(t, s.deletions())
}

// TestSweepWaitsForTheGrace: a leftover is deleted after the grace period, but not while an operation
// holds its node. Its first sight stays during that time. One that is gone meanwhile is forgotten.
func TestSweepWaitsForTheGrace(t *testing.T) {
	s := setup(t).sweep()
	n, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	require.Equal(t, map[machines.SurplusClass]int{machines.ClassLeftover: 1}, s.rounds(2).Found)
	require.Equal(t, "leftover", s.stored(c.Instance.InstanceID))
	require.Zero(t, s.deletions())

	s.later()
	const firstSeen = "SELECT first_seen::text FROM machine_leftovers"
	before, holder := s.text(firstSeen), s.claim(n.ID, lifecycle.ActionProvision)
	s.exec("UPDATE machine_leftovers SET last_seen = last_seen - interval '2 days'")
	require.Equal(t, activities.SweepSummary{Machines: 1}, s.rounds(1))
	require.Zero(t, s.deletions(), "the operation may release it")
	due, err := s.Sweep.Surplus.Due(t.Context(), []string{"libvirt"}, 10)
	require.NoError(t, err)
	require.Empty(t, due)
	require.Equal(t, before, s.text(firstSeen))
	require.Len(t, s.surplusFaults(), 1)
	s.canceled(holder)
	require.Equal(t, 1, s.rounds(1).Deleting, "the grace period does not start again")
	s.later()
	require.Equal(t, []string{c.Instance.InstanceID}, s.rounds(1).Deleted)
	require.Equal(t, "released", s.entry(c))
	require.Empty(t, s.stored(c.Instance.InstanceID))
	require.Empty(t, s.site.Site.All())
	require.Empty(t, s.site.Site.Disks())
	require.Empty(t, s.rounds(1).Found)
}

// TestSweepForgetsReleased: the operation that holds the node releases the leftover.
func TestSweepForgetsReleased(t *testing.T) {
	s := setup(t).sweep()
	n, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	s.rounds(1)
	holder := s.claim(n.ID, lifecycle.ActionRemove)
	s.rounds(1)
	require.Equal(t, "leftover", s.stored(c.Instance.InstanceID))
	s.site.Site.Remove(s.text("SELECT external_id FROM resources WHERE resource_id = $1", c.Instance.InstanceID))
	require.NoError(t, s.Store.Operations.Released(t.Context(), holder.Fence, c.Instance.InstanceID))
	s.rounds(1)
	require.Empty(t, s.stored(c.Instance.InstanceID))
}

// TestSweepEndsLateCreation: the creation of a machine ended after the cancel had released its
// entry, and no worker recorded it. The entry is open again before the deletion.
func TestSweepEndsLateCreation(t *testing.T) {
	s := setup(t).sweep()
	n, c := s.provisioned()
	require.NoError(t, s.Store.Operations.Released(t.Context(), c.Fence, c.Instance.InstanceID))
	s.canceled(c)
	require.Empty(t, s.rounds(1).Found)
	id := s.appears(c.Instance.InstanceID)
	s.rounds(1)
	s.later()
	require.Equal(t, []string{"resources.released accepted leftover", "resources.created succeeded operation_over"},
		s.changes(n.ID, func() { s.rounds(1) }))
	require.Equal(t, "created", s.entry(c))
	require.Equal(t, id, s.text("SELECT external_id FROM resources WHERE resource_id = $1", c.Instance.InstanceID))
	require.Equal(t, []string{"resources.released succeeded leftover"}, s.changes(n.ID, func() { s.rounds(1) }))
	require.Equal(t, "released", s.entry(c))
}

// TestSweepFinishesForcedRemoval: the ledger of a removal whose teardown was forced is finished,
// also if the machine is gone or was never created.
func TestSweepFinishesForcedRemoval(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"the machine exists": true, "the machine is gone": false} {
		t.Run(name, func(t *testing.T) {
			s := setup(t).sweep()
			n, c := s.provisioned()
			if exists {
				s.created(c)
			}
			require.NoError(t, s.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeRegistered}))
			remove := s.claim(n.ID, lifecycle.ActionRemove)
			forced := &lifecycle.OperationStatus{Operation: lifecycle.Operation{Phases: []lifecycle.Phase{{Name: lifecycle.PhaseTeardown, State: lifecycle.PhaseForced}}}}
			require.NoError(t, s.Finish(t.Context(), remove.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved,
				Instance: lifecycle.InstanceTerminated, DenyIdentity: true, Document: forced}))
			s.rounds(1)
			require.Equal(t, "leftover", s.stored(c.Instance.InstanceID))
			s.later()
			s.rounds(2)
			require.Equal(t, "released", s.entry(c))
			require.Empty(t, s.stored(c.Instance.InstanceID))
		})
	}
}

// TestSweepOnlyReportsOrphans: a machine that the ledger does not have is never deleted, whatever
// its owner tag. gpuaas stuck lists it after the grace period.
func TestSweepOnlyReportsOrphans(t *testing.T) {
	s := setup(t).sweep()
	unknown := schema.NewID()
	for _, tag := range []string{unknown, "another-installation"} {
		s.appears(tag)
	}
	require.Equal(t, map[machines.SurplusClass]int{machines.ClassOrphan: 2}, s.rounds(1).Found)
	require.Empty(t, s.surplusFaults(), "before the grace period")
	s.later()
	s.rounds(1)
	require.Zero(t, s.deletions())
	faults := s.surplusFaults()
	require.Len(t, faults, 1)
	require.Equal(t, "orphan", faults[0].Reason)
	require.Contains(t, faults[0].Message, "provider libvirt has 2 machines that no instance owns, the oldest for 30m")
	require.Contains(t, faults[0].Message, unknown)
	require.NotEmpty(t, faults[0].Next)
	counts, err := s.SurplusCounts(t.Context())
	require.NoError(t, err)
	require.Len(t, counts, 1)
	require.Equal(t, int64(2), counts[0].Orphans)
}

// TestSweepOnlyReportsDuplicates: a second machine with the owner tag of a live instance is not the one
// of the ledger. It is reported and never deleted, whichever machine the provider lists first, and the
// one of the ledger is none.
func TestSweepOnlyReportsDuplicates(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"with the machine of the ledger": true, "without it": false} {
		t.Run(name, func(t *testing.T) {
			s := setup(t).sweep()
			n, c := s.provisioned()
			id := c.Instance.InstanceID
			second := machines.Machine{Ref: machines.Ref{InstanceID: id, ExternalID: "m-second", Host: n.Host}, Phase: machines.Running}
			record := func(listed ...machines.Machine) map[machines.SurplusClass]int {
				found, err := s.Sweep.Surplus.Record(t.Context(), "libvirt", listed)
				require.NoError(t, err)
				return found
			}
			require.Empty(t, record(second), "the ledger does not have the ID of the machine yet")
			s.created(c)
			listed := []machines.Machine{second}
			if own {
				site, ok := s.site.Site.Owned(id)
				require.True(t, ok)
				listed = []machines.Machine{{Ref: machines.Ref{InstanceID: id, ExternalID: site.ID}}, second, {Ref: machines.Ref{InstanceID: id, ExternalID: site.ID}}}
			}
			require.Equal(t, map[machines.SurplusClass]int{machines.ClassDuplicate: 1}, record(listed...))
			s.later()
			record(listed...)
			require.Equal(t, "duplicate m-second", s.text("SELECT class || ' ' || external_id FROM machine_leftovers"))
			due, err := s.Sweep.Surplus.Due(t.Context(), []string{"libvirt"}, 10)
			require.NoError(t, err)
			require.Empty(t, due)
			_, begun, err := s.Sweep.Surplus.BeginDeletion(t.Context(), machines.Surplus{Provider: "libvirt", Machine: second})
			require.NoError(t, err)
			require.False(t, begun)

			faults := s.surplusFaults()
			require.Len(t, faults, 1)
			require.Equal(t, "duplicate", faults[0].Reason)
			require.Contains(t, faults[0].Message, n.Host+" ("+id+", m-second)")
			require.NotContains(t, faults[0].Next, "GPUAAS_SWEEP")
			counts, err := s.SurplusCounts(t.Context())
			require.NoError(t, err)
			require.Equal(t, int64(1), counts[0].Duplicates)
			require.Empty(t, record(listed[:len(listed)/2]...), "it is gone")
			require.Empty(t, s.stored(id))
		})
	}
}

// surplusFaults are the faults about machines that no instance owns.
func (s *sweep) surplusFaults() (found []wire.ControlPlaneFault) {
	s.t.Helper()
	faults, err := s.Admin.Faults(s.t.Context())
	require.NoError(s.t, err)
	for _, f := range faults {
		if f.Component == "surplus-machine" {
			found = append(found, f)
		}
	}
	return found
}

// TestSweepReportsOnly: a worker that only reports deletes nothing and does not change the ledger.
func TestSweepReportsOnly(t *testing.T) {
	s := setup(t).sweep()
	s.Deletes = false
	n, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	s.rounds(1)
	s.later()
	require.Empty(t, s.changes(n.ID, func() { s.rounds(1) }))
	require.Zero(t, s.deletions())
	require.Equal(t, "created", s.entry(c))
	faults := s.surplusFaults()
	require.Len(t, faults, 1)
	require.Equal(t, "leftover", faults[0].Reason)
	require.Contains(t, faults[0].Next, "GPUAAS_SWEEP=delete")
}

// TestSweepDuringRestore: nothing is deleted while a restore mode is on, also if it starts after
// the leftovers were read.
func TestSweepDuringRestore(t *testing.T) {
	s := setup(t).sweep()
	ctx := t.Context()
	_, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	s.rounds(1)
	s.later()
	due, err := s.Sweep.Surplus.Due(ctx, []string{"libvirt"}, 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
	mode := s.owner()
	_, err = mode.Start(ctx, "the disk broke", time.Hour, operator)
	require.NoError(t, err)
	_, begun, err := s.Sweep.Surplus.BeginDeletion(ctx, due[0])
	require.NoError(t, err)
	require.False(t, begun)
	s.rounds(1)
	require.Zero(t, s.deletions())
	_, err = mode.Stop(ctx, operator)
	require.NoError(t, err)
	s.rounds(1)
	require.Equal(t, 1, s.deletions())
}

// TestSweepChecksAgain: between the list and the deletion an operation claims the node.
func TestSweepChecksAgain(t *testing.T) {
	s := setup(t).sweep()
	n, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	s.rounds(1)
	s.later()
	due, err := s.Sweep.Surplus.Due(t.Context(), []string{"libvirt"}, 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
	s.claim(n.ID, lifecycle.ActionProvision)
	_, begun, err := s.Sweep.Surplus.BeginDeletion(t.Context(), due[0])
	require.NoError(t, err)
	require.False(t, begun)
	require.Equal(t, "created", s.entry(c))
}

// TestSweepsAtOnce: two workers delete one machine at once. Each step is on record once.
func TestSweepsAtOnce(t *testing.T) {
	s := setup(t).sweep()
	n, c := s.provisioned()
	s.created(c)
	s.canceled(c)
	s.rounds(1)
	s.later()
	due, err := s.Sweep.Surplus.Due(t.Context(), []string{"libvirt"}, 10)
	require.NoError(t, err)
	rows := s.changes(n.ID, func() {
		for _, err := range race(4, func(int) error {
			_, begun, err := s.Sweep.Surplus.BeginDeletion(t.Context(), due[0])
			if err == nil && !begun {
				err = errors.New("the deletion did not begin")
			}
			return err
		}) {
			require.NoError(t, err)
		}
		for _, err := range race(4, func(i int) error {
			if i%2 == 0 {
				_, err := s.Sweep.Surplus.Record(t.Context(), "libvirt", []machines.Machine{{Ref: due[0].Ref}})
				return err
			}
			return s.Sweep.Surplus.Deleted(t.Context(), due[0])
		}) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"resources.released accepted leftover", "resources.released succeeded leftover"}, rows)
}

// TestSweepRetriesLast: a machine whose deletion fails comes after the others, and at most ten
// deletions begin within the time of a run, whatever the attempts.
func TestSweepRetriesLast(t *testing.T) {
	s := setup(t).sweep()
	var first string
	for i := range 12 {
		_, c := s.provisioned()
		s.created(c)
		s.canceled(c)
		if i == 0 {
			s.rounds(1)
			first = c.Instance.InstanceID
		}
	}
	s.rounds(1)
	s.later()
	s.site.Gate = func(_ context.Context, method string, _ bool, do func()) error {
		if method == "delete" {
			return machines.Errorf(machines.ReasonAuth, "the key has expired")
		}
		do()
		return nil
	}
	require.Contains(t, s.surplusFaults()[0].Next, "GPUAAS_SWEEP=delete", "no deletion was attempted")
	_, err := s.round()
	require.Equal(t, machines.ReasonAuth, activities.Typed(err).Reason)
	fault := s.surplusFaults()[0]
	require.Contains(t, fault.Message, "; 10 of them were to be deleted, the last one ")
	require.Contains(t, fault.Message, " ago, and the provider has not confirmed it")
	require.Contains(t, fault.Next, "a fault of sweep-machines")
	require.NotContains(t, fault.Next, "GPUAAS_SWEEP")
	require.True(t, strings.HasPrefix(activities.Typed(err).Message, "deleting the machine of instance "))
	s.rounds(1)
	require.Equal(t, 10, s.deletions(), "in the time of one run")
	s.exec("UPDATE machine_leftovers SET attempted_at = attempted_at - make_interval(secs => $1)", lifecycle.SweepTimeout.Seconds()+1)
	due, err := s.Sweep.Surplus.Due(t.Context(), []string{"libvirt"}, 3)
	require.NoError(t, err)
	require.Len(t, due, 3)
	require.NotEqual(t, first, due[0].InstanceID)
	require.NotEqual(t, first, due[1].InstanceID)
}
