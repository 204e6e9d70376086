package provider

import (
	"context"
	"slices"
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
			failed(b, m.ExternalID)
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
				b.inject(Describe, Unavailable, 1)
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
			b.inject(c, f.mode, 1)
			b.reason(b.within(answer, do), f.reasons...)
			b.Faults.Clear()
			require.NoError(b.t, b.within(answer, do))
		}})
	}
	return all
}

func listCases() []testCase {
	all := []testCase{
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
			failed(b, m.ExternalID)
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
			require.Eventually(b.t, func() bool { all, err := b.Provider.List(b.t.Context()); return err == nil && len(all) == 0 }, b.Settle, poll)
		}},
		{"list/has a machine whose creation was lost", creates | faults, func(b *bench) {
			s := b.Spec()
			_, err := createFaulted(b, s, lost()[0])
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
				b.inject(List, Unavailable, 1)
				found, err := b.list()
				b.reason(err, machine.ReasonUnavailable, machine.ReasonAmbiguous)
				require.Empty(b.t, found)
				b.Faults.Clear()
				require.Equal(b.t, []string{s.InstanceID}, b.listed())
			}
		}},
	}
	all = append(all, queryFaults(List, func(b *bench, ctx context.Context, _ machine.Ref) error { _, err := b.Provider.List(ctx); return err })...)
	return append(all, queryFaults(Describe, func(b *bench, ctx context.Context, r machine.Ref) error {
		_, err := b.Provider.Describe(ctx, r)
		return err
	})...)
}
