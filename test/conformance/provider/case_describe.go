package provider

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

func specCases() []testCase {
	changes := []struct {
		name    string
		change  func(s *machine.Spec)
		reasons []string
	}{
		{"unknown region", func(s *machine.Spec) { s.Region = "atlantis-9" }, nil},
		{"unknown type", func(s *machine.Spec) { s.Type = "no-such-type" }, nil},
		{"unknown image", func(s *machine.Spec) { s.Image = "no-such-image" }, []string{machine.ReasonImage}},
		{"type with a path", func(s *machine.Spec) { s.Type = "../../etc" }, nil},
		{"image with a path", func(s *machine.Spec) { s.Image = "../../etc/passwd" }, []string{machine.ReasonImage}},
		{"no instance ID", func(s *machine.Spec) { s.InstanceID = "" }, nil},
		{"no host", func(s *machine.Spec) { s.Host = "" }, nil},
		{"host with a command", func(s *machine.Spec) { s.Host = "a;rm -rf /" }, nil},
		{"host with a substitution", func(s *machine.Spec) { s.Host = "$(reboot)" }, nil},
		{"host with a path", func(s *machine.Spec) { s.Host = "../x" }, nil},
		{"host of 300 characters", func(s *machine.Spec) { s.Host = strings.Repeat("a", 300) }, nil},
		{"host with a newline", func(s *machine.Spec) { s.Host = "gpu-1\nroot" }, nil},
		{"host with markup", func(s *machine.Spec) { s.Host = "<gpu&1>" }, nil},
		{"host with a NUL", func(s *machine.Spec) { s.Host = "gpu\x00" }, nil},
	}
	var all []testCase
	for _, c := range changes {
		all = append(all, testCase{"spec/" + c.name + " is rejected", 0, func(b *bench) {
			s := b.Spec()
			c.change(&s)
			_, err := b.try(s)
			b.reason(err, append(c.reasons, machine.ReasonRejected)...)
			require.Zero(b.t, b.boots.Load(), "boot data of a rejected machine")
			b.count(0)
			b.noLeftovers()
		}})
	}
	return all
}

func describeCases() []testCase {
	return []testCase{
		{"describe/by external ID", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			got, err := b.Provider.Describe(b.t.Context(), m.Ref)
			require.NoError(b.t, err)
			b.matches(s, got)
			require.Equal(b.t, m.ExternalID, got.ExternalID)
		}},
		{"describe/by owner tag only", creates, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			got, err := b.Provider.Describe(b.t.Context(), machine.Ref{InstanceID: s.InstanceID, Region: s.Region})
			require.NoError(b.t, err)
			b.matches(s, got)
			require.Equal(b.t, m.ExternalID, got.ExternalID)
		}},
		{"describe/by another adapter", creates | second, func(b *bench) {
			s := b.Spec()
			m := b.running(s)
			got, err := b.Second.Describe(b.t.Context(), ref(s))
			require.NoError(b.t, err)
			require.Equal(b.t, m.ExternalID, got.ExternalID)
		}},
		{"describe/of a machine that never existed is missing", creates, func(b *bench) {
			b.reason(b.describe(ref(b.Spec())), machine.ReasonMissing)
		}},
		{"describe/of an instance among others is missing", creates, func(b *bench) {
			b.running(b.Spec())
			b.reason(b.describe(ref(b.Spec())), machine.ReasonMissing)
		}},
		{"describe/of a foreign machine is missing", creates | outside, func(b *bench) {
			s := b.Spec()
			r := ref(s)
			r.ExternalID = b.Outside.Foreign(b.t, s.Host)
			b.reason(b.describe(r), machine.ReasonMissing)
			b.reason(b.describe(ref(s)), machine.ReasonMissing)
		}},
		{"describe/of a hostile reference is missing or rejected", creates, func(b *bench) {
			b.running(b.Spec())
			for _, id := range []string{"../x", "a;rm -rf /", "a\nb", strings.Repeat("a", 300), "' or 1=1 --", "*", "%"} {
				b.reason(b.describe(machine.Ref{InstanceID: id, ExternalID: id}), machine.ReasonMissing, machine.ReasonRejected)
				b.reason(b.describe(machine.Ref{InstanceID: id}), machine.ReasonMissing, machine.ReasonRejected)
			}
		}},
	}
}

// describeChanges are about machines that others changed, and unavailable providers.
func describeChanges() []testCase {
	return []testCase{
		{"describe/of a machine that was deleted outside is missing", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Destroy(b.t, m.ExternalID)
			b.gone(m.Ref)
		}},
		{"describe/of a machine that was stopped outside is stopped", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Stop(b.t, m.ExternalID)
			b.await(m.Ref, machine.Stopped)
		}},
		{"describe/of a failed machine is failed", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			breakMachine(b, m.ExternalID)
			b.await(m.Ref, machine.Failed)
		}},
		{"describe/does not change a stopped machine", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Stop(b.t, m.ExternalID)
			for range 3 {
				b.await(m.Ref, machine.Stopped)
			}
			b.powered(m.ExternalID, false)
		}},
		{"describe/flapping", creates | faults, func(b *bench) {
			m := b.running(b.Spec())
			for range 3 {
				b.inject(Describe, Unavailable)
				b.reason(b.describe(m.Ref), machine.ReasonUnavailable, machine.ReasonAmbiguous)
				b.Faults.Clear()
				require.NoError(b.t, b.describe(m.Ref))
			}
		}},
		{"describe/a hostile detail is one short line", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			out, ok := b.Outside.(Details)
			if !ok {
				b.t.Skip("the provider reports no detail")
			}
			out.Explain(b.t, m.ExternalID, "\x1b[2Jstate\r\n\x00\u0085"+strings.Repeat("long ", 10_000))
			got, err := b.Provider.Describe(b.t.Context(), m.Ref)
			require.NoError(b.t, err)
			b.oneLine(got)
			require.NotEmpty(b.t, b.listed())
		}},
	}
}
