package provider

import (
	"bytes"
	"context"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/machine"
)

func consoleCases() []testCase {
	all := []testCase{
		{"console/of a running machine is bounded", creates, func(b *bench) {
			tail, err := b.console(b.running(b.Spec()).Ref)
			require.NoError(b.t, err)
			require.LessOrEqual(b.t, len(tail), machine.MaxConsole)
			b.hides(string(tail))
		}},
		{"console/of a new machine is empty or bounded", creates, func(b *bench) {
			tail, err := b.console(b.create(b.Spec()).Ref)
			require.NoError(b.t, err)
			require.LessOrEqual(b.t, len(tail), machine.MaxConsole)
		}},
		{"console/of a stopped machine can be read", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			b.Outside.Stop(b.t, m.ExternalID)
			b.await(m.Ref, machine.Stopped)
			tail, err := b.console(m.Ref)
			require.NoError(b.t, err)
			require.LessOrEqual(b.t, len(tail), machine.MaxConsole)
		}},
		{"console/after a reset can be read", creates, func(b *bench) {
			m := b.running(b.Spec())
			changePower(b, m.Ref, machine.PowerReset)
			tail, err := b.console(m.Ref)
			require.NoError(b.t, err)
			require.LessOrEqual(b.t, len(tail), machine.MaxConsole)
		}},
		{"console/of a missing machine is missing", creates, func(b *bench) {
			_, err := b.console(ref(b.Spec()))
			b.reason(err, machine.ReasonMissing)
		}},
		{"console/of a foreign machine is missing", creates | outside, func(b *bench) {
			s := b.Spec()
			r := ref(s)
			r.ExternalID = b.Outside.Foreign(b.t, s.Host)
			tail, err := b.console(r)
			b.reason(err, machine.ReasonMissing, machine.ReasonRejected)
			require.Empty(b.t, tail)
		}},
		{"console/returns the end of a long console", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			printConsole(b, m.ExternalID, append(bytes.Repeat([]byte("\x1b[31mline\x00\r\n"), 20_000), "the end"...))
			tail, err := b.console(m.Ref)
			require.NoError(b.t, err)
			require.LessOrEqual(b.t, len(tail), machine.MaxConsole)
			require.True(b.t, bytes.HasSuffix(tail, []byte("the end")), "the tail has not the end of the console")
		}},
		{"console/may have any bytes", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			printConsole(b, m.ExternalID, []byte("\x00\xff\xfe\x1b]0;title\a"))
			_, err := b.console(m.Ref)
			require.NoError(b.t, err)
		}},
		{"console/may be empty", creates | outside, func(b *bench) {
			m := b.running(b.Spec())
			printConsole(b, m.ExternalID, nil)
			tail, err := b.console(m.Ref)
			require.NoError(b.t, err)
			require.Empty(b.t, tail)
		}},
	}
	return append(all, consoleFaults()...)
}

// consoleFaults skips Garbage: a console may have any bytes.
func consoleFaults() []testCase {
	var all []testCase
	for _, c := range queryFaults(Console, func(b *bench, ctx context.Context, r machine.Ref) error {
		_, err := b.Provider.Console(ctx, r)
		return err
	}) {
		if c.name != "console/garbage is an error and not an empty answer" {
			all = append(all, c)
		}
	}
	return all
}

// printConsole writes a console from outside.
func printConsole(b *bench, id string, data []byte) {
	b.t.Helper()
	out, ok := b.Outside.(Prints)
	if !ok {
		b.t.Skip("the target cannot write to consoles")
	}
	out.Print(b.t, id, data)
}
