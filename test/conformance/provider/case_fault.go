package provider

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// A fault of a creation: whether it has an effect, and the reasons of its error.
type fault struct {
	mode    Mode
	effect  bool
	reasons []string
}

// lost are the faults that leave it open what happened, and refused those that do not.
func lost() []fault {
	ambiguous := []string{machine.ReasonAmbiguous}
	return []fault{{LostReply, true, ambiguous}, {Late, true, ambiguous}, {Garbage, true, ambiguous}, {Slow, true, ambiguous}}
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

// createFaults has the faults of a creation, each with the calls that a worker makes afterwards.
func createFaults() []testCase {
	var all []testCase
	for _, f := range refused() {
		all = append(all, testCase{"create/" + string(f.mode) + " has no effect", creates | faults, func(b *bench) {
			s := b.Spec()
			err := createFaulted(b, s, f)
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

// faulted runs one call, which fails as f says. The context of a slow call ends when the provider has done what
// was asked and does not respond.
func (b *bench) faulted(f fault, call func(ctx context.Context) error) error {
	b.t.Helper()
	return b.within(answer, func(ctx context.Context) error {
		if f.mode == Slow {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			go cancelWaiting(ctx, b.Faults, cancel)
		}
		return call(ctx)
	})
}

// cancelWaiting cancels the context when a slow request waits for it.
func cancelWaiting(ctx context.Context, f Faults, cancel context.CancelFunc) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !f.Waiting() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	cancel()
}

// createFaulted creates a machine of the spec while the provider fails.
func createFaulted(b *bench, s machine.Spec, f fault) error {
	b.t.Helper()
	b.inject(Create, f.mode)
	return b.faulted(f, func(ctx context.Context) error {
		_, err := b.Provider.Create(ctx, s, b.boot)
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
}

func createLost(b *bench, f fault) {
	s := b.Spec()
	err := createFaulted(b, s, f)
	openOutcome(b, err, f)
	b.Faults.Clear()
	b.await(ref(s), machine.Running)
	b.count(1)
}

func createRepeated(b *bench, f fault) {
	s := b.Spec()
	err := createFaulted(b, s, f)
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
	err := createFaulted(b, s, f)
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
		b.inject(Create, f.mode)
		if _, err := b.try(s); err != nil {
			b.reason(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
		}
		b.Faults.Clear()
	}
	b.create(s)
	b.await(ref(s), machine.Running)
	b.count(1)
}
