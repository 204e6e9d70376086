package provider

import (
	"context"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

func deleteCases() []testCase {
	return []testCase{
		{"delete/leaves nothing", creates, func(b *bench) {
			b.remove(b.running(b.Spec()).Ref)
			b.count(0)
			b.noLeftovers()
		}},
		{"delete/by owner tag only", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			require.NoError(b.t, b.delete(ref(s)))
			b.gone(m.Ref)
			b.count(0)
			b.noLeftovers()
		}},
		{"delete/twice", creates, func(b *bench) {
			m := b.running(b.Spec())
			require.NoError(b.t, b.delete(m.Ref))
			require.NoError(b.t, b.delete(m.Ref))
			b.gone(m.Ref)
			require.NoError(b.t, b.delete(m.Ref))
			b.count(0)
		}},
		{"delete/by two adapters at once", creates | second, deleteConcurrent},
		{"delete/of a machine that never existed succeeds", creates, func(b *bench) {
			require.NoError(b.t, b.delete(ref(b.Spec())))
			b.count(0)
			b.noLeftovers()
		}},
		{"delete/of an unknown external ID succeeds", creates, func(b *bench) {
			s, unknown := b.Spec(), b.Spec()
			r := ref(s)
			r.ExternalID = unknown.InstanceID
			require.NoError(b.t, b.delete(r))
		}},
		{"delete/with a foreign external ID keeps the foreign machine", creates | outside, func(b *bench) {
			s := b.Spec()
			r := ref(s)
			r.ExternalID = b.Outside.Foreign(b.t, s.Host)
			if err := b.delete(r); err != nil {
				b.reason(err, machine.ReasonMissing, machine.ReasonRejected)
			}
			require.Contains(b.t, b.Outside.Machines(b.t), r.ExternalID)
		}},
		{"delete/with the host name of a foreign machine keeps it", creates | outside, func(b *bench) {
			s := b.Spec()
			foreign := b.Outside.Foreign(b.t, s.Host)
			require.NoError(b.t, b.delete(ref(s)))
			require.Contains(b.t, b.Outside.Machines(b.t), foreign)
		}},
		{"delete/with the external ID of another instance keeps that machine", creates, func(b *bench) {
			kept := b.running(b.Spec())
			r := ref(b.Spec())
			r.ExternalID = kept.ExternalID
			if err := b.delete(r); err != nil {
				b.reason(err, machine.ReasonMissing, machine.ReasonRejected)
			}
			require.NoError(b.t, b.describe(kept.Ref))
			b.count(1)
		}},
		{"delete/keeps the other machines", creates, func(b *bench) {
			kept := b.running(b.Spec())
			b.remove(b.running(b.Spec()).Ref)
			b.await(kept.Ref, machine.Running)
			b.count(1)
		}},
	}
}

// deletePhases are about the phases in which a machine is deleted.
func deletePhases() []testCase {
	return []testCase{
		{"delete/during creation leaves nothing", creates, func(b *bench) {
			s := b.Spec()
			m := b.create(s)
			b.remove(m.Ref)
			b.count(0)
			b.noLeftovers()
		}},
		{"delete/of a stopped machine", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Stop(b.t, m.ExternalID)
			b.await(m.Ref, machine.Stopped)
			b.remove(m.Ref)
			b.noLeftovers()
		}},
		{"delete/of a failed machine", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			breakMachine(b, m.ExternalID)
			b.remove(m.Ref)
			b.noLeftovers()
		}},
		{"delete/of a machine that was deleted outside leaves nothing", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Destroy(b.t, m.ExternalID)
			b.gone(m.Ref)
			require.NoError(b.t, b.delete(m.Ref))
			b.gone(m.Ref)
			b.count(0)
			b.noLeftovers()
		}},
		{"delete/is deleting or missing afterwards", creates, func(b *bench) {
			m := b.running(b.Spec())
			require.NoError(b.t, b.delete(m.Ref))
			got, err := b.Provider.Describe(b.t.Context(), m.Ref)
			if err != nil {
				b.reason(err, machine.ReasonMissing)
			} else {
				require.Equal(b.t, machine.Deleting, got.Phase)
			}
			b.gone(m.Ref)
		}},
		{"delete/flapping", creates | faults, func(b *bench) {
			m := b.running(b.Spec())
			for _, mode := range []Mode{Unavailable, LostReply, LostRequest} {
				b.inject(Delete, mode)
				if err := b.delete(m.Ref); err != nil {
					b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
				}
				b.Faults.Clear()
			}
			b.remove(m.Ref)
			b.count(0)
			b.noLeftovers()
		}},
	}
}

// deleteFaults has the faults of a deletion.
func deleteFaults() []testCase {
	var all []testCase
	for _, f := range append(lost(), refused()...) {
		if f.mode == Quota || f.mode == Capacity {
			continue
		}
		all = append(all, testCase{"delete/" + string(f.mode) + ", then delete leaves nothing", creates | faults, func(b *bench) { deleteFault(b, f) }})
	}
	return all
}

func deleteConcurrent(b *bench) {
	m := b.running(b.Spec())
	ctx, cancel := context.WithTimeout(b.t.Context(), answer+b.Wait)
	defer cancel()
	var wg sync.WaitGroup
	var errs [2]error
	for i, p := range []activities.MachineProvider{b.Provider, b.Second} {
		wg.Go(func() { errs[i] = p.Delete(ctx, m.Ref) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil { // the one that loses may not be sure
			b.clean(err)
			b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
		}
	}
	b.remove(m.Ref)
	b.count(0)
	b.noLeftovers()
}

// deleteFault deletes while the provider fails. A deletion that failed without an effect keeps the
// machine.
func deleteFault(b *bench, f fault) {
	m := b.running(b.Spec())
	b.inject(Delete, f.mode)
	err := b.faulted(f, func(ctx context.Context) error { return b.Provider.Delete(ctx, m.Ref) })
	if err != nil || !f.effect {
		b.reason(err, f.reasons...)
	}
	if !f.effect || machine.Is(err, machine.ReasonUnavailable) {
		require.NoError(b.t, b.describe(m.Ref))
	}
	b.Faults.Clear()
	b.remove(m.Ref)
	b.count(0)
	b.noLeftovers()
}
