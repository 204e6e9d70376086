package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
)

// unarmed returns the status of a policy in monitor mode, with a node for each brake. Of those that only
// the mode stops, every second one needs a reset of a GPU.
func unarmed(t *testing.T, brakes ...recovery.Brake) record.Status {
	t.Helper()
	st := record.Status{Policy: storedPolicy(t, recovery.ModeMonitor, 2), DecidedAt: start().Add(-20 * time.Second)}
	st.Policy.Body = nil
	for i, b := range brakes {
		d := decided(t)
		d.Mode, d.Brake, d.Host, d.Region, d.Rack = recovery.ModeMonitor, b, fmt.Sprintf("gpu-%d", i), "fra1", fmt.Sprintf("r%d", i/2)
		if i%2 == 1 {
			d.Rung = recovery.RungResetGPU
		}
		if b == "" {
			d.Rung = ""
		}
		st.Nodes = append(st.Nodes, record.NodeState{Decision: d})
	}
	return st
}

func arming(t *testing.T, st record.Status) (*harness, *recoveryAPI) {
	t.Helper()
	return recovering(t, map[string]any{"GET " + recoveryPath: st, "POST " + recoveryPath + "/arm": storedPolicy(t, recovery.ModeArmed, 3)})
}

// TestArmPreview: before it arms, the command shows how many repairs would start, by first step and by
// place, and what stops the others. A dry run changes nothing.
func TestArmPreview(t *testing.T) {
	t.Parallel()
	const monitor = recovery.BrakeMonitor
	st := unarmed(t, monitor, monitor, monitor, recovery.BrakeBudget, recovery.BrakeBudget, recovery.BrakeWindow, "")
	h, a := arming(t, st)
	require.Zero(t, h.golden("recovery-arm-dry-run", "recovery", "arm", "--dry-run"))
	require.Empty(t, a.path)
	require.Zero(t, h.run("recovery", "arm", "--dry-run", "-o", "json"))
	require.Contains(t, h.out.String(), `"starts": 3`)

	require.Equal(t, schema.ExitUsage, h.golden("recovery-arm-unconfirmed", "recovery", "arm", "--reason", "CHG-1"))
	require.Empty(t, a.path)
	require.Equal(t, schema.ExitUsage, h.run("recovery", "arm", "--yes"))
	require.Contains(t, h.err.String(), "missing --reason")
	require.Zero(t, h.golden("recovery-arm-yes", "recovery", "arm", "--reason", "CHG-1", "--yes"))
	require.Equal(t, map[string]any{"reason": "CHG-1", "expected_digest": st.Policy.Digest}, a.body)
}

// TestArmConfirmation: arming asks if repairs start now or as budgets allow, or if that is not clear.
func TestArmConfirmation(t *testing.T) {
	t.Parallel()
	never, old, changed := unarmed(t), unarmed(t), unarmed(t)
	never.DecidedAt = time.Time{}
	old.DecidedAt = start().Add(-time.Hour)
	changed.Policy.At = start()
	armed := unarmed(t, recovery.BrakeBudget)
	armed.Policy.Mode = recovery.ModeArmed
	for name, c := range map[string]struct {
		st    record.Status
		asked string // empty if the command does not ask
	}{
		"nothing has a fault":  {unarmed(t), ""},
		"all is stopped":       {unarmed(t, recovery.BrakeWindow, recovery.BrakeBreaker, ""), ""},
		"it is armed":          {armed, ""},
		"one starts":           {unarmed(t, recovery.BrakeMonitor), "arm health recovery: 1 repair starts now"},
		"one waits":            {unarmed(t, recovery.BrakeBudget), "0 repairs start now, and 1 wait for a budget"},
		"two start, one waits": {unarmed(t, recovery.BrakeMonitor, recovery.BrakeMonitor, recovery.BrakeBudget), "2 repairs start now, and 1 wait for a budget"},
		"no round":             {never, "no round has decided yet"},
		"an old round":         {old, "the last round was 1h ago"},
		"a new policy":         {changed, "no round has decided with this policy yet"},
	} {
		h, a := arming(t, c.st)
		code := h.run("recovery", "arm", "--reason", "CHG-1")
		if c.asked == "" {
			require.Zero(t, code, name)
			require.NotEmpty(t, a.path, name)
			continue
		}
		require.Equal(t, schema.ExitUsage, code, name)
		require.Contains(t, h.err.String(), c.asked, name)
		require.Contains(t, h.err.String(), "--yes", name)
		require.Empty(t, a.path, name)
	}
}

// TestPolicyMadeFrom: the command sends the digest of the policy from which the file was made, else that of
// the policy in use with a warning. The flag goes first.
func TestPolicyMadeFrom(t *testing.T) {
	t.Parallel()
	now := storedPolicy(t, recovery.ModeMonitor, 4)
	h, a := recovering(t, map[string]any{"GET " + recoveryPath + "/policy": now, "POST " + recoveryPath + "/policy": now})
	require.Zero(t, h.run("recovery", "policy", "show"))
	shown, digest := h.out.String(), strings.Repeat("ab", 32)
	require.Contains(t, shown, now.Digest)
	for _, c := range []struct {
		document, flag, sent string
		warns                bool
	}{
		{shown, "", now.Digest, false},
		{strings.Replace(shown, now.Digest, digest, 1), "", digest, false},
		{strings.Replace(shown, now.Digest, digest+"  \r", 1), "", digest, false},
		{shown, "--expected-digest=" + digest, digest, false},
		{"samples: 4\n", "--expected-digest=" + digest, digest, false},
		{"samples: 4\n", "", now.Digest, true},
		{strings.Replace(shown, now.Digest, "abc", 1), "", now.Digest, true},
	} {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(file, []byte(c.document), 0o600))
		args := []string{"recovery", "policy", "set", "--reason", "CHG-1", "--file", file}
		if c.flag != "" {
			args = append(args, c.flag)
		}
		require.Zero(t, h.run(args...), h.err.String())
		require.Equal(t, c.sent, a.body["expected_digest"], c)
		require.Equal(t, c.warns, strings.Contains(h.err.String(), "does not say from which policy"), c)
	}
}

// TestHostilePolicyFile: a file that is no policy is an error of the command line, however large or nested.
func TestHostilePolicyFile(t *testing.T) {
	t.Parallel()
	h, a := recovering(t, nil)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", 'b'+i, 'b'+i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", 'a'+i), 9), ","))
	}
	for name, document := range map[string]string{
		"large":  strings.Repeat("# x\n", 1<<20),
		"nested": strings.Repeat("[", 20_000),
		"deep":   "ladders: " + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000),
		"bomb":   bomb,
		"NaN":    "samples: .nan\n",
		"inf":    "samples: .inf\n",
		"float":  "samples: 1e400\n",
		"time":   "windows: [{reason: x, start: 0000-99-99, end: 2026-01-01}]\n",
		"type":   "samples: [3]\n",
		"bytes":  "samples: \"\xff\xfe\"\n",
		"key":    "? [a, b]\n: c\n",
	} {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(file, []byte(document), 0o600))
		for _, args := range [][]string{{"policy", "set", "--reason", "r", "--file", file}, {"replay", "--policy", file}} {
			code := h.run(append([]string{"recovery"}, args...)...)
			require.Contains(t, []int{schema.ExitUsage, schema.ExitRefused}, code, "%s: %s", name, h.err.String())
			require.Less(t, h.err.Len(), 4000, name)
		}
	}
	require.Empty(t, a.path)
}
