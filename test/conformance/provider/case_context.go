package provider

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// calls are the calls of the port for a machine that exists.
func calls(b *bench) map[Call]func(ctx context.Context, s machine.Spec) error {
	return map[Call]func(ctx context.Context, s machine.Spec) error{
		Create: func(ctx context.Context, s machine.Spec) error {
			_, err := b.Provider.Create(ctx, s, b.boot)
			return err
		},
		Describe: func(ctx context.Context, s machine.Spec) error {
			_, err := b.Provider.Describe(ctx, ref(s))
			return err
		},
		Power: func(ctx context.Context, s machine.Spec) error {
			return b.Provider.Power(ctx, ref(s), machine.PowerReset)
		},
		Console: func(ctx context.Context, s machine.Spec) error { _, err := b.Provider.Console(ctx, ref(s)); return err },
		Delete:  func(ctx context.Context, s machine.Spec) error { return b.Provider.Delete(ctx, ref(s)) },
		List:    func(ctx context.Context, _ machine.Spec) error { _, err := b.Provider.List(ctx); return err },
	}
}

// contextCases are about calls whose context has ended, or ends while the provider is slow.
func contextCases() []testCase {
	var all []testCase
	for _, c := range []Call{Describe, Power, Console, Delete, List} {
		all = append(all, testCase{"context/a canceled " + string(c) + " is an error without effect", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			err := b.returns(func() error { return calls(b)[c](ctx, s) })
			b.reason(err, machine.ReasonUnavailable, machine.ReasonAmbiguous)
			b.await(m.Ref, machine.Running)
		}})
	}
	for _, c := range []Call{Describe, Console, List} {
		all = append(all, testCase{"context/a slow " + string(c) + " ends with its context", creates | faults, func(b *bench) {
			s := b.Spec()
			b.running(s)
			b.inject(c, Slow)
			b.reason(b.within(time.Second, func(ctx context.Context) error { return calls(b)[c](ctx, s) }), machine.ReasonUnavailable, machine.ReasonAmbiguous)
		}})
	}
	return append(all,
		testCase{"context/a canceled create makes at most one machine", creates, func(b *bench) {
			s := b.Spec()
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			b.reason(b.returns(func() error { return calls(b)[Create](ctx, s) }), machine.ReasonUnavailable, machine.ReasonAmbiguous)
			b.create(s)
			b.await(ref(s), machine.Running)
			b.count(1)
		}},
		testCase{"context/a create that is canceled at the boot data makes at most one machine", creates, func(b *bench) {
			s := b.Spec()
			ctx, cancel := context.WithCancel(b.t.Context())
			defer cancel()
			err := b.returns(func() error {
				_, err := b.Provider.Create(ctx, s, func(context.Context) (activities.Boot, error) { cancel(); return b.boot(ctx) })
				return err
			})
			if err != nil {
				b.reason(err, machine.ReasonUnavailable, machine.ReasonAmbiguous)
			}
			b.create(s)
			b.await(ref(s), machine.Running)
			b.count(1)
		}},
	)
}

// secretCases are about the errors of failed calls: the credentials of the provider and the boot
// data must not be in them. Every other case checks its errors too.
func secretCases() []testCase {
	var all []testCase
	for _, c := range []Call{Create, Describe, Power, Console, Delete, List} {
		all = append(all, testCase{"secrets/are not in the errors of " + string(c), creates | faults, func(b *bench) {
			injected := 0
			for _, mode := range []Mode{Auth, Unavailable, LostRequest, LostReply, Garbage} {
				s := b.Spec()
				if c != Create {
					b.running(s)
				}
				if !b.Faults.Inject(c, mode, 1) {
					continue
				}
				injected++
				_ = b.within(answer, func(ctx context.Context) error { return calls(b)[c](ctx, s) }) // within checks the error
				b.Faults.Clear()
			}
			require.Positive(b.t, injected)
		}})
	}
	return append(all, testCase{"secrets/are not in machines and consoles", creates, func(b *bench) {
		m := b.running(b.Spec())
		tail, err := b.console(m.Ref)
		require.NoError(b.t, err)
		b.hides(string(tail) + m.Detail + m.ExternalID + m.Host + m.Type)
		b.listed()
	}})
}

// adoptCases are about a provider that adopts machines: it needs a person for each change.
func adoptCases() []testCase {
	all := []testCase{
		{"adopt/create returns the host as a running machine", adopts, func(b *bench) {
			s := b.Spec()
			m := b.create(s)
			require.Equal(b.t, machine.Running, m.Phase)
			require.Equal(b.t, s.Host, m.Host)
			require.Equal(b.t, m, b.create(s))
		}},
		{"adopt/create issues no boot data", adopts, func(b *bench) {
			b.create(b.Spec())
			require.Zero(b.t, b.boots.Load())
		}},
		{"adopt/describe returns the host as a running machine", adopts, func(b *bench) {
			s := b.Spec()
			m := b.create(s)
			require.Equal(b.t, m, b.await(m.Ref, machine.Running))
			require.Equal(b.t, m, b.await(ref(s), machine.Running))
		}},
		{"adopt/console asks a person", adopts, func(b *bench) {
			m := b.create(b.Spec())
			_, err := b.console(m.Ref)
			asksPerson(b, err, m.Host)
		}},
		{"adopt/delete keeps the machine", adopts, func(b *bench) {
			m := b.create(b.Spec())
			require.NoError(b.t, b.delete(m.Ref))
			require.NoError(b.t, b.delete(m.Ref))
			b.await(m.Ref, machine.Running)
		}},
		{"adopt/delete of an unknown machine succeeds", adopts, func(b *bench) { require.NoError(b.t, b.delete(ref(b.Spec()))) }},
		{"adopt/the list is empty", adopts, func(b *bench) {
			b.create(b.Spec())
			require.Empty(b.t, b.listed())
		}},
	}
	for _, p := range []machine.Power{machine.PowerOn, machine.PowerOff, machine.PowerReset} {
		all = append(all, testCase{"adopt/power " + string(p) + " asks a person", adopts, func(b *bench) {
			m := b.create(b.Spec())
			asksPerson(b, b.power(m.Ref, p), m.Host)
		}})
	}
	return append(all, testCase{"adopt/an unknown change of power has no instruction", adopts, func(b *bench) {
		b.reason(b.power(b.create(b.Spec()).Ref, "explode"), machine.ReasonUnsupported, machine.ReasonRejected)
	}})
}

// asksPerson checks that an error is an instruction about the host.
func asksPerson(b *bench, err error, host string) {
	b.t.Helper()
	b.reason(err, machine.ReasonPerson)
	require.ErrorContains(b.t, err, host, "the instruction does not name the machine: %v", err)
}
