package provider

import (
	"context"
	"errors"
	"sync"
	"time"

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
			require.Equal(b.t, b.create(s).ExternalID, b.create(s).ExternalID)
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
			failed(b, m.ExternalID)
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

// failed puts a machine into the phase Failed and waits until Describe shows it.
func failed(b *bench, id string) {
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
	ctx, cancel := context.WithTimeout(b.t.Context(), answer+b.Settle)
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

// A fault of a creation: whether it has an effect, and the reasons of its error.
type fault struct {
	mode    Mode
	effect  bool
	reasons []string
}

// lost are the faults that leave it open what happened, and refused those that do not.
func lost() []fault {
	ambiguous := []string{machine.ReasonAmbiguous}
	return []fault{
		{LostReply, true, ambiguous}, {Late, true, ambiguous}, {Garbage, true, ambiguous},
		{Slow, true, []string{machine.ReasonAmbiguous, machine.ReasonUnavailable}},
	}
}

func refused() []fault {
	return []fault{
		{LostRequest, false, []string{machine.ReasonUnavailable, machine.ReasonAmbiguous}},
		{Unavailable, false, []string{machine.ReasonUnavailable, machine.ReasonAmbiguous}},
		{Quota, false, []string{machine.ReasonQuota}},
		{Capacity, false, []string{machine.ReasonCapacity}},
		{Auth, false, []string{machine.ReasonAuth}},
	}
}

// limit bounds the context of a call that fails. A slow provider responds after it.
func (f fault) limit() time.Duration {
	if f.mode == Slow {
		return time.Second
	}
	return answer
}

// createFaults has the faults of a creation, each with the calls that a worker makes afterwards.
func createFaults() []testCase {
	var all []testCase
	for _, f := range refused() {
		all = append(all, testCase{"create/" + string(f.mode) + " has no effect", creates | faults, func(b *bench) {
			s := b.Spec()
			_, err := createFaulted(b, s, f)
			b.reason(err, f.reasons...)
			b.count(0)
			b.reason(b.describe(ref(s)), machine.ReasonMissing)
			b.create(s)
			b.count(1)
		}})
	}
	for _, f := range lost() {
		all = append(all,
			testCase{"create/" + string(f.mode) + ", then describe finds the machine", creates | faults, func(b *bench) { createLost(b, f) }},
			testCase{"create/" + string(f.mode) + ", then create returns the machine", creates | faults, func(b *bench) { createRepeated(b, f) }},
			testCase{"create/" + string(f.mode) + ", then delete leaves nothing", creates | faults, func(b *bench) { createAbandoned(b, f) }},
		)
	}
	return append(all, testCase{"create/flapping is one machine", creates | faults, createFlapping})
}

// createFaulted creates a machine of the spec while the provider fails.
func createFaulted(b *bench, s machine.Spec, f fault) (m machine.Machine, err error) {
	b.t.Helper()
	b.inject(Create, f.mode, 1)
	return m, b.within(f.limit(), func(ctx context.Context) error {
		m, err = b.Provider.Create(ctx, s, b.boot)
		return err
	})
}

// openOutcome checks the outcome of a creation whose answer was lost: the adapter may have found the
// machine, or it reports that it may exist.
func openOutcome(b *bench, err error, f fault) {
	b.t.Helper()
	if err != nil {
		b.reason(err, f.reasons...)
	}
	if machine.Is(err, machine.ReasonUnavailable) {
		b.Faults.Clear()
		b.count(0)
		b.t.Skip("the context ended before the adapter had sent its request")
	}
}

func createLost(b *bench, f fault) {
	s := b.Spec()
	_, err := createFaulted(b, s, f)
	openOutcome(b, err, f)
	b.Faults.Clear()
	b.await(ref(s), machine.Running)
	b.count(1)
}

func createRepeated(b *bench, f fault) {
	s := b.Spec()
	_, err := createFaulted(b, s, f)
	openOutcome(b, err, f)
	if f.mode != Late {
		b.Faults.Clear()
	}
	issued := b.boots.Load()
	m, err := b.try(s) // a late creation may still be under way
	b.Faults.Clear()
	if err != nil {
		b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
		m = b.create(s)
	} else if f.mode != Late {
		require.Equal(b.t, issued, b.boots.Load(), "boot data of an existing machine")
	}
	b.matches(s, m)
	require.Equal(b.t, m.ExternalID, b.await(ref(s), machine.Running).ExternalID)
	b.count(1)
}

func createAbandoned(b *bench, f fault) {
	s := b.Spec()
	_, err := createFaulted(b, s, f)
	openOutcome(b, err, f)
	b.Faults.Clear()
	b.await(ref(s), machine.Running)
	b.remove(ref(s))
	b.count(0)
	b.noLeftovers()
}

func createFlapping(b *bench) {
	s := b.Spec()
	for _, f := range []fault{refused()[0], lost()[0], refused()[1]} {
		b.inject(Create, f.mode, 1)
		if _, err := b.try(s); err != nil {
			b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
		}
		b.Faults.Clear()
	}
	b.create(s)
	b.await(ref(s), machine.Running)
	b.count(1)
}

// noLeftovers checks that the provider keeps nothing of a deleted machine.
func (b *bench) noLeftovers() {
	b.t.Helper()
	if b.Outside != nil {
		require.Eventually(b.t, func() bool { return len(b.Outside.Leftovers(b.t)) == 0 }, b.Settle, poll, "the provider keeps something of a deleted machine")
	}
}
