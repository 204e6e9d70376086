package provider

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// reference is the one-time reference in the boot data of all cases. It is a secret.
const reference = "gpuref_c0ffee4d1e5a7b92"

const (
	// answer bounds one call. A call is fast, but the machine of the test may be slow.
	answer = 2 * time.Minute
	poll   = 20 * time.Millisecond
	// maxDetail bounds a detail in bytes.
	maxDetail = 1 << 10
)

// bench is the target of one case with the steps that cases share.
type bench struct {
	Target
	t *testing.T
	// boots counts the boot data that were issued.
	boots atomic.Int32
}

func newBench(t *testing.T, target Target) *bench {
	t.Helper()
	require.NotNil(t, target.Provider)
	require.NotNil(t, target.Spec)
	require.Positive(t, target.Wait)
	b := &bench{Target: target, t: t}
	if b.Faults != nil {
		t.Cleanup(b.Faults.Clear)
	}
	return b
}

// boot is the BootData of all creations.
func (b *bench) boot(context.Context) (activities.Boot, error) {
	b.boots.Add(1)
	return activities.Boot{UserData: []byte("#!/bin/sh\nREFERENCE=" + reference + "\n"), BaseURL: "https://node-api.test:8443", Reference: reference}, nil
}

// within runs one call, which must return before the limit, and returns its error.
func (b *bench) within(limit time.Duration, call func(ctx context.Context) error) error {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), limit)
	defer cancel()
	return b.returns(func() error { return call(ctx) })
}

// returns fails the case if the call does not return.
func (b *bench) returns(call func() error) error {
	b.t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		b.clean(err)
		return err
	case <-time.After(answer + b.Wait):
		require.FailNow(b.t, "the call does not return")
		return nil
	}
}

// try creates a machine of the spec and returns the error.
func (b *bench) try(s machine.Spec) (m machine.Machine, err error) {
	b.t.Helper()
	return m, b.within(answer, func(ctx context.Context) error {
		m, err = b.Provider.Create(ctx, s, b.boot)
		return err
	})
}

// create creates a machine of the spec.
func (b *bench) create(s machine.Spec) machine.Machine {
	b.t.Helper()
	m, err := b.try(s)
	require.NoError(b.t, err)
	b.matches(s, m)
	return m
}

// matches checks that m is the machine of the spec.
func (b *bench) matches(s machine.Spec, m machine.Machine) {
	b.t.Helper()
	require.Equal(b.t, s.InstanceID, m.InstanceID, "the owner tag")
	require.NotEmpty(b.t, m.ExternalID)
	require.Contains(b.t, machine.Phases(), m.Phase)
	b.oneLine(m)
}

// oneLine checks a machine's detail, which is untrusted.
func (b *bench) oneLine(m machine.Machine) {
	b.t.Helper()
	require.LessOrEqual(b.t, len(m.Detail), maxDetail, "the detail is too long")
	require.False(b.t, strings.ContainsFunc(m.Detail, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }),
		"the detail has control characters: %q", m.Detail)
	b.hides(m.Detail)
}

// running creates a machine and waits until it runs.
func (b *bench) running(s machine.Spec) machine.Machine {
	b.t.Helper()
	m := b.create(s)
	return b.await(m.Ref, machine.Running)
}

// await polls Describe until the machine is in the phase.
func (b *bench) await(r machine.Ref, want machine.Phase) (m machine.Machine) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var err error
		m, err = b.Provider.Describe(b.t.Context(), r)
		return err == nil && m.Phase == want
	}, b.Wait, poll, "the machine is not %s", want)
	return m
}

// gone polls Describe until the machine is missing, and checks that nothing is left of it.
func (b *bench) gone(r machine.Ref) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return machine.Is(b.describe(r), machine.ReasonMissing) }, b.Wait, poll, "the machine is not deleted")
	if b.Outside != nil {
		require.NotContains(b.t, b.Outside.Machines(b.t), r.ExternalID)
	}
}

// describe returns the error of Describe.
func (b *bench) describe(r machine.Ref) error {
	b.t.Helper()
	return b.within(answer, func(ctx context.Context) error { _, err := b.Provider.Describe(ctx, r); return err })
}

func (b *bench) power(r machine.Ref, p machine.Power) error {
	b.t.Helper()
	return b.within(answer, func(ctx context.Context) error { return b.Provider.Power(ctx, r, p) })
}

func (b *bench) console(r machine.Ref) (tail []byte, err error) {
	b.t.Helper()
	return tail, b.within(answer, func(ctx context.Context) error {
		tail, err = b.Provider.Console(ctx, r)
		return err
	})
}

func (b *bench) delete(r machine.Ref) error {
	b.t.Helper()
	return b.within(answer, func(ctx context.Context) error { return b.Provider.Delete(ctx, r) })
}

// remove deletes a machine and waits until it has ended.
func (b *bench) remove(r machine.Ref) {
	b.t.Helper()
	require.NoError(b.t, b.delete(r))
	b.gone(r)
}

func (b *bench) list() (all []machine.Machine, err error) {
	b.t.Helper()
	return all, b.within(answer, func(ctx context.Context) error {
		all, err = b.Provider.List(ctx)
		return err
	})
}

// listed returns the instance IDs of the list.
func (b *bench) listed() []string {
	b.t.Helper()
	all, err := b.list()
	require.NoError(b.t, err)
	ids := []string{}
	for _, m := range all {
		b.oneLine(m)
		ids = append(ids, m.InstanceID)
	}
	slices.Sort(ids)
	return ids
}

// count checks how many machines the provider has, as its console shows it.
func (b *bench) count(want int) {
	b.t.Helper()
	if b.Outside != nil {
		require.Len(b.t, b.Outside.Machines(b.t), want, "machines at the provider")
	}
}

// inject makes the next request of a call fail.
func (b *bench) inject(c Call, m Mode) {
	b.t.Helper()
	if !b.Faults.Inject(c, m, 1) {
		b.t.Skipf("%s of this provider cannot fail with %s", c, m)
	}
}

// reason checks that err has one of the reasons, with the kind of its problem.
func (b *bench) reason(err error, reasons ...string) {
	b.t.Helper()
	require.Error(b.t, err)
	got := schema.AsError(err)
	require.Contains(b.t, reasons, got.Reason, "%v", err)
	for _, p := range machine.Problems() {
		if p.Reason == got.Reason {
			require.Equal(b.t, p.Kind, got.Kind, "the kind of %s", p.Reason)
		}
	}
	require.NotEmpty(b.t, got.Message)
}

// clean checks that an error holds no secret and is bounded.
func (b *bench) clean(err error) {
	b.t.Helper()
	if err == nil {
		return
	}
	b.hides(err.Error())
	e := schema.AsError(err)
	b.hides(e.Message + e.Next)
	require.LessOrEqual(b.t, len(e.Message), 4*maxDetail, "the message is too long")
}

// hides checks that a text holds no secret.
func (b *bench) hides(text string) {
	b.t.Helper()
	for _, s := range append([]string{reference}, b.Secrets...) {
		require.NotContains(b.t, text, s, "a text of the provider holds a secret")
	}
}

// powered checks the power of a machine, as the provider's console shows it.
func (b *bench) powered(id string, want bool) {
	b.t.Helper()
	if b.Outside != nil {
		require.Eventually(b.t, func() bool { return b.Outside.PoweredOn(b.t, id) == want }, b.Wait, poll, "power on: want %v", want)
	}
}

// ref is the reference of a spec's machine without an external ID.
func ref(s machine.Spec) machine.Ref {
	return machine.Ref{InstanceID: s.InstanceID, Host: s.Host, Region: s.Region}
}
