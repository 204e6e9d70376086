package provider

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// queryFaults are the faults of the calls that change nothing: none of their errors says that a
// machine is missing.
func queryFaults(c Call, call func(b *bench, ctx context.Context, r machine.Ref) error) []testCase {
	unavailable := []string{machine.ReasonUnavailable, machine.ReasonAmbiguous}
	var all []testCase
	for _, f := range []fault{
		{LostRequest, false, unavailable},
		{LostReply, false, unavailable},
		{Unavailable, false, unavailable},
		{Garbage, false, unavailable},
		{Auth, false, []string{machine.ReasonAuth}},
	} {
		all = append(all, testCase{string(c) + "/" + string(f.mode) + " is an error and not an empty answer", creates | faults, func(b *bench) {
			m := b.running(b.Spec())
			do := func(ctx context.Context) error { return call(b, ctx, m.Ref) }
			b.inject(c, f.mode)
			b.reason(b.within(answer, do), f.reasons...)
			b.Faults.Clear()
			require.NoError(b.t, b.within(answer, do))
		}})
	}
	return all
}

func listCases() []testCase {
	return []testCase{
		{"list/is empty without machines", 0, func(b *bench) { require.Empty(b.t, b.listed()) }},
		{"list/has own machines", creates, func(b *bench) {
			one, two := b.Spec(), b.Spec()
			b.running(one)
			b.running(two)
			want := []string{one.InstanceID, two.InstanceID}
			slices.Sort(want)
			require.Equal(b.t, want, b.listed())
		}},
		{"list/has external IDs and phases", creates, func(b *bench) {
			m := b.running(b.Spec())
			found, err := b.list()
			require.NoError(b.t, err)
			require.Len(b.t, found, 1)
			require.Equal(b.t, m.ExternalID, found[0].ExternalID)
			require.Equal(b.t, machine.Running, found[0].Phase)
		}},
		{"list/leaves out foreign machines", creates | outside, func(b *bench) {
			foreign := b.Outside.Foreign(b.t, b.Spec().Host)
			require.Empty(b.t, b.listed())
			s := b.Spec()
			b.running(s)
			require.Equal(b.t, []string{s.InstanceID}, b.listed())
			require.Contains(b.t, b.Outside.Machines(b.t), foreign)
		}},
		{"list/has machines that are being created", creates, func(b *bench) {
			s := b.Spec()
			b.create(s)
			require.Equal(b.t, []string{s.InstanceID}, b.listed())
		}},
		{"list/has stopped machines", creates | outside, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			b.Outside.Stop(b.t, m.ExternalID)
			require.Equal(b.t, []string{s.InstanceID}, b.listed())
		}},
		{"list/has failed machines", creates | outside, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			breakMachine(b, m.ExternalID)
			require.Equal(b.t, []string{s.InstanceID}, b.listed())
		}},
		{"list/leaves out deleted machines", creates, func(b *bench) {
			kept, deleted := b.Spec(), b.Spec()
			b.running(kept)
			b.remove(b.running(deleted).Ref)
			require.Equal(b.t, []string{kept.InstanceID}, b.listed())
		}},
		{"list/leaves out machines that were deleted outside", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Destroy(b.t, m.ExternalID)
			require.Eventually(b.t, func() bool { all, err := b.Provider.List(b.t.Context()); return err == nil && len(all) == 0 }, b.Wait, poll)
		}},
	}
}

// listOthers are about lost creations, another adapter, and a provider that fails sometimes.
func listOthers() []testCase {
	return []testCase{
		{"list/has a machine whose creation was lost", creates | faults, func(b *bench) {
			s := b.Spec()
			err := createFaulted(b, s, lost()[0])
			openOutcome(b, err, lost()[0])
			b.Faults.Clear()
			require.Equal(b.t, []string{s.InstanceID}, b.listed())
		}},
		{"list/by another adapter", creates | second, func(b *bench) {
			s := b.Spec()
			b.running(s)
			found, err := b.Second.List(b.t.Context())
			require.NoError(b.t, err)
			require.Len(b.t, found, 1)
			require.Equal(b.t, s.InstanceID, found[0].InstanceID)
		}},
		{"list/flapping", creates | faults, func(b *bench) {
			s := b.Spec()
			b.running(s)
			for range 3 {
				b.inject(List, Unavailable)
				found, err := b.list()
				b.reason(err, machine.ReasonUnavailable, machine.ReasonAmbiguous)
				require.Empty(b.t, found)
				b.Faults.Clear()
				require.Equal(b.t, []string{s.InstanceID}, b.listed())
			}
		}},
	}
}

// listFaults has the faults of the calls List and Describe.
func listFaults() []testCase {
	all := queryFaults(List, func(b *bench, ctx context.Context, _ machine.Ref) error { _, err := b.Provider.List(ctx); return err })
	return append(all, queryFaults(Describe, func(b *bench, ctx context.Context, r machine.Ref) error {
		_, err := b.Provider.Describe(ctx, r)
		return err
	})...)
}
