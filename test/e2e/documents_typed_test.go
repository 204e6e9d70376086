package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// newDevTerminal is a terminal in a folder whose development stack is that of the suite.
func newDevTerminal(t *testing.T) *terminal {
	t.Helper()
	d := newTerminal(t)
	require.NoError(t, os.Symlink(shared.Dir, filepath.Join(d.dir, ".dev")))
	return d
}

// interrupt runs a command that does not end, until its output satisfies the condition. Then it interrupts the
// command, which must end without an error.
func (d *terminal) interrupt(what string, until func(printed string) bool, line string, names ...string) {
	d.t.Helper()
	file, err := os.Create(filepath.Join(d.t.TempDir(), "printed"))
	require.NoError(d.t, err)
	c := d.command("exec "+line, names...)
	c.Stdout, c.Stderr = file, file
	require.NoError(d.t, c.Start())
	printed := func() string {
		text, err := os.ReadFile(file.Name())
		require.NoError(d.t, err)
		return string(text)
	}
	d.t.Cleanup(func() { _ = c.Process.Kill() }) // fails if the command has ended
	eventually(d.t, what, func() bool { return until(printed()) })
	require.NoError(d.t, c.Process.Signal(os.Interrupt))
	require.NoError(d.t, c.Wait(), "%s\n%s", line, printed())
	require.NoError(d.t, file.Close())
}

// cutAt splits lines before the first one with the prefix.
func cutAt(t *testing.T, lines []string, prefix string) (before, rest []string) {
	t.Helper()
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) })
	require.GreaterOrEqual(t, i, 0, "no line begins with %s", prefix)
	return lines[:i], lines[i:]
}

// TestReadmeStepByStep types the README's block for one node on the development stack, and a smaller fleet. The suite itself
// builds and starts the stack (the lines before dev env) and stops it (the last line).
func TestReadmeStepByStep(t *testing.T) {
	d := newDevTerminal(t)
	node := host(t, "readme")
	all := blocks(t, "README.md", "## Step by step")
	require.Len(t, all, 1)
	before, rest := cutAt(t, strings.SplitAfter(strings.TrimRight(all[0], "\n"), "\n"), "eval ")
	require.Len(t, before, 2, "the suite runs ./task build and gpuaas dev up")
	steps, rest := cutAt(t, rest, "gpuaas dev fleet ")
	require.Len(t, rest, 2, "the fleet, and gpuaas dev down")

	printed := d.types(strings.Join(steps, ""), "gpu-17", node)
	require.Contains(t, printed, node)
	require.Equal(t, lifecycle.NodeDrained, show(t, node).State)

	fleet := host(t, "sim")
	d.interrupt("the nodes of the fleet are active", func(string) bool {
		return strings.Count(ok(t, "node", "list", "--limit", "0").stdout, fleet) == 5
	}, strings.TrimSpace(rest[0]), "fleet 50", "fleet 5 --prefix "+fleet)
}

// TestOnCallCommands types the blocks of docs/on-call.md while a drain is parked. The decision about many operations is
// typed for the reason of this park, with --yes in place of the answer at a terminal.
func TestOnCallCommands(t *testing.T) {
	const page = "docs/on-call.md"
	d := newDevTerminal(t)
	node, _ := enrolled(t, "on-call")
	startWorkload(t, node, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	require.Equal(t, schema.ExitPending, run(t, "node", "drain", node, "--yes", "--deadline", "2s").code)
	parkedFor(t, node, lifecycle.ReasonDrainBlocked)

	start := blocks(t, page, "## Start with `gpuaas stuck`")
	require.Len(t, start, 2)
	lines := strings.SplitAfter(strings.TrimRight(start[0], "\n"), "\n")
	require.Len(t, lines, 3)
	require.Contains(t, d.types(lines[0]), node)
	d.interrupt("gpuaas stuck --watch lists the node", func(printed string) bool { return strings.Contains(printed, node) }, strings.TrimSpace(lines[1]))
	require.Contains(t, d.types(lines[2]), node)
	shown := d.types(start[1], "gpu-04", node)
	require.Contains(t, shown, lifecycle.ReasonDrainBlocked)
	require.Contains(t, shown, "stubborn")

	outages := blocks(t, page, "## Outages")
	require.Len(t, outages, 1)
	decisions := strings.SplitAfter(strings.TrimRight(outages[0], "\n"), "\n")
	require.Len(t, decisions, 2)
	for _, line := range decisions {
		if !strings.Contains(line, "--dry-run") {
			line += " --yes"
		}
		require.Contains(t, d.types(line, lifecycle.ReasonVaultSealed, lifecycle.ReasonDrainBlocked), node)
	}
	eventually(t, "the drain is parked again and forced", func() bool {
		return run(t, "op", "force", node, "--reason", "the test is over", "--yes").code == schema.ExitDone
	})
	waitFor(t, node, lifecycle.NodeDrained)
}
