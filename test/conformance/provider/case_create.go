package provider

import (
	"context"
	"errors"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

func createCases() []testCase {
	return []testCase{
		{"create/makes a machine that runs", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			b.matches(s, m)
			b.count(1)
			b.powered(m.ExternalID, true)
		}},
		{"create/reports the spec", creates, func(b *bench) {
			s := b.Spec()
			m := b.create(s)
			for what, pair := range map[string][2]string{"host": {s.Host, m.Host}, "region": {s.Region, m.Region}, "type": {s.Type, m.Type}} {
				if pair[1] != "" {
					require.Equal(b.t, pair[0], pair[1], what)
				}
			}
		}},
		{"create/is not a wait for the machine", creates, func(b *bench) {
			require.Contains(b.t, []machine.Phase{machine.Creating, machine.Running}, b.create(b.Spec()).Phase)
		}},
		{"create/twice with one ID is one machine", creates, func(b *bench) {
			s := b.Spec()
			first := b.create(s)
			require.Equal(b.t, first.ExternalID, b.create(s).ExternalID)
			b.count(1)
		}},
		{"create/five times with one ID is one machine", creates, func(b *bench) {
			s := b.Spec()
			first := b.create(s)
			for range 4 {
				require.Equal(b.t, first.ExternalID, b.create(s).ExternalID)
			}
			b.count(1)
		}},
		{"create/returns a running machine", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			again := b.create(s)
			require.Equal(b.t, m.ExternalID, again.ExternalID)
			require.Equal(b.t, machine.Running, again.Phase)
		}},
		{"create/returns a stopped machine and leaves it stopped", creates | outside, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			b.Outside.Stop(b.t, m.ExternalID)
			b.await(m.Ref, machine.Stopped)
			require.Equal(b.t, m.ExternalID, b.create(s).ExternalID)
			b.powered(m.ExternalID, false)
			b.count(1)
		}},
		{"create/returns a failed machine", creates | outside, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			breakMachine(b, m.ExternalID)
			again := b.create(s)
			require.Equal(b.t, m.ExternalID, again.ExternalID)
			require.Equal(b.t, machine.Failed, again.Phase)
			b.count(1)
		}},
		{"create/two IDs are two machines", creates, func(b *bench) {
			one, two := b.create(b.Spec()), b.create(b.Spec())
			require.NotEqual(b.t, one.ExternalID, two.ExternalID)
			b.count(2)
		}},
		{"create/after a deletion is a new machine", creates, func(b *bench) {
			s := b.Spec()
			b.remove(b.running(s).Ref)
			b.running(s)
			b.count(1)
		}},
	}
}

// exclusiveCases are about creations at once, and machines of others.
func exclusiveCases() []testCase {
	return []testCase{
		{"create/concurrent calls with one ID are one machine", creates, func(b *bench) {
			createAtOnce(b, b.Provider, b.Provider)
		}},
		{"create/two adapters at once are one machine", creates | second, func(b *bench) {
			createAtOnce(b, b.Provider, b.Second)
		}},
		{"create/another adapter finds the machine", creates | second, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			again, err := b.Second.Create(b.t.Context(), s, b.boot)
			require.NoError(b.t, err)
			require.Equal(b.t, m.ExternalID, again.ExternalID)
			require.EqualValues(b.t, 1, b.boots.Load(), "boot data of an existing machine")
			b.count(1)
		}},
		{"create/does not adopt a foreign machine with the host name", creates | outside, func(b *bench) {
			s := b.Spec()
			foreign := b.Outside.Foreign(b.t, s.Host)
			m, err := b.try(s)
			if err == nil {
				require.NotEqual(b.t, foreign, m.ExternalID)
			}
			require.Contains(b.t, b.Outside.Machines(b.t), foreign)
		}},
	}
}

// bootCases are about the boot data of a creation.
func bootCases() []testCase {
	return []testCase{
		{"boot/is issued once for a creation", creates, func(b *bench) {
			b.create(b.Spec())
			require.EqualValues(b.t, 1, b.boots.Load())
		}},
		{"boot/is not issued for a machine that exists", creates, func(b *bench) {
			s := b.Spec()
			b.create(s)
			b.create(s)
			b.create(s)
			require.EqualValues(b.t, 1, b.boots.Load())
		}},
		{"boot/is issued for a machine each", creates, func(b *bench) {
			b.create(b.Spec())
			b.create(b.Spec())
			require.EqualValues(b.t, 2, b.boots.Load())
		}},
		{"boot/error ends the creation without a machine", creates, bootFails},
		{"boot/is not called without a valid spec", creates, func(b *bench) {
			s := b.Spec()
			s.Host = ""
			_, err := b.try(s)
			b.reason(err, machine.ReasonRejected)
			require.Zero(b.t, b.boots.Load())
		}},
	}
}

// breakMachine puts a machine into the phase Failed and waits until Describe shows it.
func breakMachine(b *bench, id string) {
	b.t.Helper()
	if !b.Outside.Break(b.t, id) {
		b.t.Skip("the provider has no failed machines")
	}
}

func bootFails(b *bench) {
	s, missing := b.Spec(), errors.New("no reference")
	err := b.within(answer, func(ctx context.Context) error {
		_, err := b.Provider.Create(ctx, s, func(context.Context) (activities.Boot, error) { return activities.Boot{}, missing })
		return err
	})
	require.ErrorIs(b.t, err, missing)
	b.count(0)
	b.reason(b.describe(ref(s)), machine.ReasonMissing)
	b.create(s) // the failed attempt blocks no other
	b.count(1)
}

// createAtOnce creates one machine by several calls at once. A call that loses may fail as long as
// the caller can repeat it.
func createAtOnce(b *bench, providers ...activities.MachineProvider) {
	b.t.Helper()
	const each = 4
	s := b.Spec()
	ctx, cancel := context.WithTimeout(b.t.Context(), answer+b.Wait)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids, failed, most := map[string]bool{}, []error{}, 0
	for _, p := range providers {
		for range each {
			wg.Go(func() {
				issued := 0 // by this call
				m, err := p.Create(ctx, s, func(ctx context.Context) (activities.Boot, error) { issued++; return b.boot(ctx) })
				mu.Lock()
				defer mu.Unlock()
				most = max(most, issued)
				if err != nil {
					failed = append(failed, err)
					return
				}
				ids[m.ExternalID] = true
			})
		}
	}
	wg.Wait()
	for _, err := range failed {
		b.clean(err)
		b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
	}
	require.LessOrEqual(b.t, most, 1, "boot data of one call")
	ids[b.create(s).ExternalID] = true
	require.Len(b.t, ids, 1, "machines of one instance")
	b.count(1)
}

// noLeftovers checks that the provider keeps nothing of a deleted machine.
func (b *bench) noLeftovers() {
	b.t.Helper()
	if b.Outside != nil {
		require.Eventually(b.t, func() bool { return len(b.Outside.Leftovers(b.t)) == 0 }, b.Wait, poll, "the provider keeps something of a deleted machine")
	}
}
