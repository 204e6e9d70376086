package provider

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// changePower changes the power of a machine. It skips the case if the provider needs a person for it.
func changePower(b *bench, r machine.Ref, p machine.Power) {
	b.t.Helper()
	err := b.power(r, p)
	if machine.Is(err, machine.ReasonPerson) || machine.Is(err, machine.ReasonUnsupported) {
		b.t.Skip("the provider does not change the power of machines")
	}
	require.NoError(b.t, err)
}

// showsPower checks the phase and the power of a machine after a change.
func showsPower(b *bench, m machine.Machine, want machine.Phase) {
	b.t.Helper()
	b.await(m.Ref, want)
	b.powered(m.ExternalID, want == machine.Running)
}

func powerCases() []testCase {
	return []testCase{
		{"power/off stops the machine", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOff)
			showsPower(b, m, machine.Stopped)
			b.count(1)
		}},
		{"power/on starts a stopped machine", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOff)
			showsPower(b, m, machine.Stopped)
			changePower(b, m.Ref, machine.PowerOn)
			showsPower(b, m, machine.Running)
		}},
		{"power/on starts a machine that was stopped outside", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Stop(b.t, m.ExternalID)
			b.await(m.Ref, machine.Stopped)
			changePower(b, m.Ref, machine.PowerOn)
			showsPower(b, m, machine.Running)
		}},
		{"power/reset keeps a running machine running", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerReset)
			showsPower(b, m, machine.Running)
			b.count(1)
		}},
		{"power/reset starts a stopped machine", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOff)
			showsPower(b, m, machine.Stopped)
			changePower(b, m.Ref, machine.PowerReset)
			showsPower(b, m, machine.Running)
		}},
		{"power/on of a running machine changes nothing", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOn)
			changePower(b, m.Ref, machine.PowerOn)
			showsPower(b, m, machine.Running)
		}},
		{"power/off of a stopped machine changes nothing", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOff)
			changePower(b, m.Ref, machine.PowerOff)
			showsPower(b, m, machine.Stopped)
		}},
		{"power/by owner tag only", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			changePower(b, ref(s), machine.PowerOff)
			showsPower(b, m, machine.Stopped)
		}},
		{"power/by another adapter", creates | second, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerOff)
			require.NoError(b.t, b.Second.Power(b.t.Context(), m.Ref, machine.PowerOn))
			showsPower(b, m, machine.Running)
		}},
	}
}

// powerTargets are about which machine changes.
func powerTargets() []testCase {
	return []testCase{
		{"power/of one machine keeps the others", creates, func(b *bench) {
			one, two := b.running(b.Spec()), b.running(b.Spec())
			changePower(b, one.Ref, machine.PowerOff)
			showsPower(b, one, machine.Stopped)
			showsPower(b, two, machine.Running)
		}},
		{"power/of a missing machine is missing", creates, func(b *bench) {
			for _, p := range []machine.Power{machine.PowerOn, machine.PowerOff, machine.PowerReset} {
				b.reason(b.power(ref(b.Spec()), p), machine.ReasonMissing)
			}
			b.count(0)
		}},
		{"power/of a machine that was deleted outside is missing", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Destroy(b.t, m.ExternalID)
			b.gone(m.Ref)
			b.reason(b.power(m.Ref, machine.PowerOn), machine.ReasonMissing)
			b.count(0)
		}},
		{"power/with a foreign external ID changes nothing", creates | outside, func(b *bench) {
			s := b.Spec()
			r := ref(s)
			r.ExternalID = b.Outside.Foreign(b.t, s.Host)
			before := b.Outside.PoweredOn(b.t, r.ExternalID)
			b.reason(b.power(r, machine.PowerOff), machine.ReasonMissing, machine.ReasonRejected)
			b.reason(b.power(r, machine.PowerOn), machine.ReasonMissing, machine.ReasonRejected)
			require.Equal(b.t, before, b.Outside.PoweredOn(b.t, r.ExternalID))
		}},
		{"power/of an unknown kind has no effect", creates, func(b *bench) {
			m := b.running(b.Spec())
			b.reason(b.power(m.Ref, "explode"), machine.ReasonUnsupported, machine.ReasonRejected)
			showsPower(b, m, machine.Running)
		}},
	}
}

// powerFaults has the faults of a change of power.
func powerFaults() []testCase {
	var all []testCase
	for _, f := range append(lost(), refused()...) {
		if f.mode == Quota || f.mode == Capacity {
			continue
		}
		all = append(all, testCase{"power/" + string(f.mode) + ", then off stops the machine", creates | faults, func(b *bench) { powerFault(b, f) }})
	}
	return all
}

func powerFault(b *bench, f fault) {
	m := b.running(b.Spec())
	b.inject(Power, f.mode)
	err := b.faulted(f, func(ctx context.Context) error { return b.Provider.Power(ctx, m.Ref, machine.PowerOff) })
	if err != nil || !f.effect {
		b.reason(err, f.reasons...)
	}
	if !f.effect || machine.Is(err, machine.ReasonUnavailable) {
		showsPower(b, m, machine.Running)
	}
	b.Faults.Clear()
	changePower(b, m.Ref, machine.PowerOff)
	showsPower(b, m, machine.Stopped)
	b.count(1)
}
