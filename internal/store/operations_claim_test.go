package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestClaimsOfOneNodeGetEachTheirOwnSeq(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	const racers = 50
	claims := make([]activities.Claim, racers)
	errs := race(racers, func(i int) (err error) {
		claims[i], err = e.Claim(t.Context(), request(n.ID, lifecycle.ActionProvision))
		return err
	})
	seqs := make([]int64, racers)
	for i, err := range errs {
		require.NoError(t, err)
		seqs[i] = claims[i].Fence.OpSeq
	}
	slices.Sort(seqs)
	for i, seq := range seqs {
		require.Equal(t, int64(i+1), seq, "each claim its own op_seq, without gaps")
	}
	open := e.operations(n.ID, true)
	require.Len(t, open, 1, "a claim ends what was open before it")
	require.Equal(t, int64(racers), open[0].OpSeq)
	rows := e.audit(n.ID)
	require.Equal(t, racers, count(rows, "nodes.provision accepted RMA-4411"))
	require.Equal(t, racers-1, count(rows, "nodes.provision failed superseded"))
}

// TestRaceOfDrains: each run that claims ended the one before, so every claim succeeds
// in the state before the first one.
func TestRaceOfDrains(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	claims := make([]activities.Claim, 50)
	for _, err := range race(len(claims), func(i int) (err error) {
		claims[i], err = e.Claim(t.Context(), request(n.ID, lifecycle.ActionDrain))
		return err
	}) {
		require.NoError(t, err)
	}
	seqs := map[int64]bool{}
	for _, c := range claims {
		require.Equal(t, lifecycle.NodeActive, c.Prior)
		seqs[c.Fence.OpSeq] = true
	}
	require.Len(t, seqs, len(claims))
	require.Equal(t, lifecycle.NodeDraining, e.node(n.ID).State)
	require.Len(t, e.operations(n.ID, true), 1)
	require.Equal(t, len(claims)-1, count(e.audit(n.ID), "nodes.drain failed superseded"))
}

func TestClaimIsIdempotent(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	r := request(n.ID, lifecycle.ActionDrain)
	claims := make([]activities.Claim, 50)
	for _, err := range race(len(claims), func(i int) (err error) {
		claims[i], err = e.Claim(t.Context(), r)
		return err
	}) {
		require.NoError(t, err)
	}
	for _, c := range claims {
		require.Equal(t, claims[0], c)
	}
	require.Equal(t, lifecycle.NodeActive, claims[0].Prior)
	require.Equal(t, lifecycle.NodeDraining, claims[0].State)
	require.Equal(t, "cpu-dev", claims[0].SKU.Name)
	require.Equal(t, "manual", claims[0].Provider)
	require.Equal(t, 1, count(e.audit(n.ID), "nodes.drain accepted RMA-4411"))

	other := r
	other.RunID = schema.NewID()
	_, err := e.Claim(t.Context(), other)
	requireKind(t, err, schema.KindInvalidRequest, "duplicate_operation")
	other.NodeID = e.inState(lifecycle.NodeActive).ID
	_, err = e.Claim(t.Context(), other)
	requireKind(t, err, schema.KindInvalidRequest, "duplicate_operation")
}

func TestClaimOfEveryActionInEveryState(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	for _, move := range lifecycle.All() {
		for _, state := range lifecycle.NodeStates() {
			t.Run(fmt.Sprintf("%s %s", move.Action, state), func(t *testing.T) {
				n := e.inState(state)
				_, refusal := lifecycle.CheckStart(move.Action, state)
				claim, err := e.Claim(t.Context(), request(n.ID, move.Action))
				switch {
				case refusal != nil:
					require.EqualError(t, err, refusal.Error())
					requireKind(t, err, schema.KindInvalidRequest, "")
				case move.Action == lifecycle.ActionReissueEnrollment:
					require.NoError(t, err)
					require.Zero(t, claim.Fence.OpSeq)
					require.Equal(t, state, e.node(n.ID).State)
					require.Zero(t, e.number("SELECT op_seq FROM nodes WHERE node_id = $1", n.ID))
					return
				case !move.Holds:
					requireKind(t, err, schema.KindInvalidRequest, "not_an_operation")
				case move.Action == lifecycle.ActionProvision && !state.Enrolled():
					requireKind(t, err, schema.KindInvalidRequest, "not_enrolled")
				case move.Action == lifecycle.ActionTerminate:
					requireKind(t, err, schema.KindInvalidRequest, "no_created_machine")
				default:
					require.NoError(t, err)
					want := state
					if move.Enter != "" {
						want = move.Enter
					}
					require.Equal(t, want, claim.State)
					require.Equal(t, state, claim.Prior)
					require.Equal(t, want, e.node(n.ID).State)
					last := e.chain(n.ID)[1]
					require.Equal(t, audit.Accepted, last.Result)
					detail := map[string]string{"from": string(state), "to": string(want), "op_seq": "1"}
					if id := claim.Instance.InstanceID; id != "" {
						detail["instance_id"] = id
					}
					require.Equal(t, detail, last.Detail)
					require.Equal(t, move.Action == lifecycle.ActionProvision, claim.Instance.InstanceID != "")
					return
				}
				after := e.node(n.ID)
				require.Equal(t, state, after.State)
				require.Nil(t, after.Operation)
				require.Zero(t, e.number("SELECT op_seq FROM nodes WHERE node_id = $1", n.ID))
				rows := e.chain(n.ID)
				require.Len(t, rows, 2)
				require.Equal(t, audit.Refused, rows[1].Result)
				require.Equal(t, schema.AsError(err).Reason, rows[1].Reason)
			})
		}
	}
}

func TestClaimOfAnUnknownNode(t *testing.T) {
	e := setup(t)
	for _, id := range []string{schema.NewID(), "gpu-17", "", "x\x00y"} {
		_, err := e.Claim(t.Context(), request(id, lifecycle.ActionDrain))
		requireKind(t, err, schema.KindNotFound, "")
	}
	require.Equal(t, 4, count(e.audit(audit.SystemStream), "nodes.drain refused not_found"))
}

func TestProvisionIsRefused(t *testing.T) { //nolint:tparallel // the cases follow each other in one database
	e := setup(t)
	ctx := t.Context()

	t.Run("before enrollment by a provider that makes no machines", func(t *testing.T) {
		n := e.register()
		_, err := e.Claim(ctx, request(n.ID, lifecycle.ActionProvision))
		requireKind(t, err, schema.KindInvalidRequest, "not_enrolled")
		require.Equal(t, "gpuaas node enroll "+n.Host, schema.AsError(err).Next)
	})
	t.Run("but not with one that does", func(t *testing.T) {
		n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
		require.Equal(t, "libvirt", e.claim(n.ID, lifecycle.ActionProvision).Provider)
	})
	t.Run("with what the provider does not have", func(t *testing.T) {
		n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
		for _, o := range []machines.Options{{Region: "elsewhere"}, {Type: "huge"}, {Image: "ubuntu"}, {Spot: true}} {
			r := request(n.ID, lifecycle.ActionProvision)
			r.Options.Machine = o
			_, err := e.Claim(ctx, r)
			requireKind(t, err, schema.KindInvalidRequest, machines.ReasonNotOffered)
		}
		r := request(n.ID, lifecycle.ActionProvision)
		r.Options.Machine = machines.Options{Region: "here", Type: "small"}
		c, err := e.Claim(ctx, r)
		require.NoError(t, err)
		require.Equal(t, r.Options.Machine, c.Instance.Options)
		n = e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
		require.Equal(t, "large", e.claim(n.ID, lifecycle.ActionProvision).Instance.Type, "the small one has less memory than the SKU needs")
	})
	t.Run("with the defaults of the provider", func(t *testing.T) {
		kept, err := e.Inventory.PutProviders(ctx, []machines.Info{{Name: "defaults", Creates: true, Catalog: machines.Catalog{
			Regions: []string{"here"}, Images: []string{"noble"}, Types: []machines.Type{{ID: "tiny", CPUs: 256, MemoryMiB: 1 << 22, GPUs: 8}},
			Defaults: machines.Options{Region: "here", Type: "tiny", Image: "noble"}}}})
		require.NoError(t, err)
		require.Empty(t, kept)
		n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "defaults" })
		used := machines.Options{Region: "here", Type: "tiny", Image: "noble", SSHKeys: nil}
		require.Equal(t, used, e.claim(n.ID, lifecycle.ActionProvision).Instance.Options)
		n, err = e.Admin.Node(ctx, n.ID)
		require.NoError(t, err)
		n.Instance.SSHKeys = nil
		require.Equal(t, used, n.Instance.Options, "the inventory has what is used")
		_, err = e.Inventory.PutProviders(ctx, []machines.Info{{Name: "defaults", Creates: true, Catalog: machines.Catalog{
			Regions: []string{"here"}, Types: []machines.Type{{ID: "tiny", CPUs: 1, MemoryMiB: 1}}, Defaults: machines.Options{Type: "tiny"}}}})
		require.NoError(t, err)
		n = e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "defaults" })
		_, err = e.Claim(ctx, request(n.ID, lifecycle.ActionProvision))
		requireKind(t, err, schema.KindInvalidRequest, "no_type_for_sku")
		require.ErrorContains(t, err, `provider "defaults" has no type for SKU `)
		r := request(n.ID, lifecycle.ActionProvision)
		r.Options.Machine.Type = "tiny"
		c, err := e.Claim(ctx, r)
		require.NoError(t, err, "an operator may choose it")
		require.Equal(t, "tiny", c.Instance.Type)
		_, err = e.Inventory.PutProviders(ctx, []machines.Info{{Name: "defaults", Creates: true, Catalog: machines.Catalog{
			Regions: []string{"here", "there"}, Defaults: machines.Options{Region: "there"}, Types: []machines.Type{
				{ID: "elsewhere", CPUs: 256, MemoryMiB: 1 << 22, GPUs: 8, Regions: []string{"here"}}, {ID: "in-there", CPUs: 256, MemoryMiB: 1 << 22, GPUs: 8}}}}})
		require.NoError(t, err)
		n = e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "defaults" })
		chosen := e.claim(n.ID, lifecycle.ActionProvision).Instance.Options
		require.Equal(t, []string{"there", "in-there"}, []string{chosen.Region, chosen.Type}, "the type is one of the default region")
		e.exec("DELETE FROM providers WHERE name = 'defaults'")
	})
	t.Run("while the provider is disabled", func(t *testing.T) {
		n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
		info, err := e.Store.Machines.Providers(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"libvirt", "manual"}, []string{info[0].Name, info[1].Name})
		require.False(t, info[0].UpdatedAt.IsZero())
		off := info[0].Info
		off.Disabled = "it is not configured"
		put := func(i machines.Info) (kept []machines.Info) {
			t.Helper()
			kept, err := e.Inventory.PutProviders(ctx, []machines.Info{i})
			require.NoError(t, err)
			return kept
		}
		require.Equal(t, []machines.Info{off}, put(off), "another worker has it enabled")
		e.exec("UPDATE providers SET updated_at = updated_at - make_interval(secs => $1) WHERE name = 'libvirt'", machines.DescriptionLife.Seconds())
		require.Empty(t, put(off))
		_, err = e.Claim(ctx, request(n.ID, lifecycle.ActionProvision))
		requireKind(t, err, schema.KindInvalidRequest, machines.ReasonDisabled)
		require.Empty(t, put(info[0].Info), "an enabled one replaces a disabled one at once")
		elsewhere := info[0].Info
		elsewhere.Host = "another"
		require.Equal(t, []machines.Info{elsewhere}, put(elsewhere), "two hosts have different machines")
	})
	t.Run("when the instance runs", func(t *testing.T) {
		n := e.inState(lifecycle.NodeActive)
		c := e.claim(n.ID, lifecycle.ActionProvision)
		require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCompleted,
			Instance: lifecycle.InstanceRunning}))
		_, err := e.Claim(ctx, request(n.ID, lifecycle.ActionProvision))
		requireKind(t, err, schema.KindInvalidRequest, "already_provisioned")
		e.claim(n.ID, lifecycle.ActionDrain)
	})
}

func TestRetireOfABusyNode(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	work := []task.Workload{{Name: "train-1", Kind: "process"}, {Name: "web", Kind: "docker"}}
	require.NoError(t, e.heartbeat(caller, wire.Heartbeat{Workloads: work}))

	_, err := e.Claim(ctx, request(caller.NodeID, lifecycle.ActionRetire))
	requireKind(t, err, schema.KindNodeInUse, "")
	require.ErrorContains(t, err, "process train-1, docker web")
	require.Equal(t, "gpuaas node retire "+caller.Host+" --drain", schema.AsError(err).Next)
	require.Equal(t, 1, count(e.audit(caller.NodeID), "nodes.retire refused node_in_use"))

	drain := e.claim(caller.NodeID, lifecycle.ActionDrain)
	e.dispatch(drain.Fence, "drain", task.WorkloadDrain)
	offer := e.take(caller, task.LeaseDuration)
	_, err = e.Result(ctx, caller, offer.TaskID, succeeded(1, task.DrainResult{Stopped: []string{"train-1", "web"}}))
	require.NoError(t, err)
	require.NoError(t, e.Finish(ctx, drain.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained}))
	require.Equal(t, lifecycle.NodeDrained, e.claim(caller.NodeID, lifecycle.ActionRetire).Prior,
		"the drain's result counts before the next heartbeat")

	busy := e.inState(lifecycle.NodeActive)
	e.exec(`UPDATE nodes SET workloads = '[{"name": "x", "kind": "process"}]' WHERE node_id = $1`, busy.ID)
	r := request(busy.ID, lifecycle.ActionRetire)
	r.Options.Drain = true
	_, err = e.Claim(ctx, r)
	require.NoError(t, err, "with drain, a busy node may be retired")
}

// TestRemoveOfABusyNode: the workloads that a retired node reported last keep it from being
// removed, however long ago that was, unless the removal is forced.
func TestRemoveOfABusyNode(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	e.exec("UPDATE nodes SET state = 'retired' WHERE node_id = $1", caller.NodeID)
	require.NoError(t, e.heartbeat(caller, wire.Heartbeat{Workloads: []task.Workload{{Name: "train-1", Kind: "process"}}}))

	_, err := e.Claim(ctx, request(caller.NodeID, lifecycle.ActionRemove))
	requireKind(t, err, schema.KindNodeInUse, "")
	require.ErrorContains(t, err, "process train-1")
	require.Contains(t, schema.AsError(err).Next, "gpuaas node reactivate "+caller.Host)
	require.Equal(t, 1, count(e.audit(caller.NodeID), "nodes.remove refused node_in_use"))
	require.Equal(t, lifecycle.NodeRetired, e.node(caller.NodeID).State)

	e.exec("UPDATE nodes SET last_heartbeat_at = now() - make_interval(secs => $2) WHERE node_id = $1",
		caller.NodeID, 2*lifecycle.SilentAfter.Seconds())
	_, err = e.Claim(ctx, request(caller.NodeID, lifecycle.ActionRemove))
	requireKind(t, err, schema.KindNodeInUse, "")
	forced := request(caller.NodeID, lifecycle.ActionRemove)
	forced.Options.Force = true
	c, err := e.Claim(ctx, forced)
	require.NoError(t, err)
	require.Equal(t, lifecycle.NodeRemoving, c.State)
}

func TestClaimSupersedesDeadRun(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	first := e.claim(caller.NodeID, lifecycle.ActionProvision)
	nodeTask := e.dispatch(first.Fence, "facts", task.FactsCollect)
	offer := e.take(caller, task.LeaseDuration)
	require.Equal(t, nodeTask.TaskID, offer.TaskID)

	second := e.claim(caller.NodeID, lifecycle.ActionProvision)
	require.Equal(t, first.Fence.OpSeq+1, second.Fence.OpSeq)
	e.takeNone(caller)
	_, err := e.Result(t.Context(), caller, offer.TaskID, succeeded(1, inventory.Facts{}))
	requireKind(t, err, schema.KindLeaseLost, "")
	ops := e.operations(caller.NodeID, false)
	require.Equal(t, second.Fence.OperationID, ops[0].OperationID)
	require.Equal(t, lifecycle.OperationFailed, ops[1].Status)
	require.Contains(t, ops[1].Outcome, second.Fence.OperationID)
	require.Contains(t, e.audit(caller.NodeID), "tasks.finished "+audit.Canceled+" voided")
}

// TestClaimRefusesForeignWorkflowIDs: a run under another workflow ID would escape
// the node's lock, however it was started.
func TestClaimRefusesForeignWorkflowIDs(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	for _, foreign := range []string{"evil-2", lifecycle.NodeWorkflowID("evil", n.ID), lifecycle.ReissueWorkflowID(n.Host, n.ID)} {
		r := request(n.ID, lifecycle.ActionDrain)
		r.WorkflowID = foreign
		_, err := e.Claim(t.Context(), r)
		requireKind(t, err, schema.KindInvalidRequest, "foreign_workflow_id")
		require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
	}
}
