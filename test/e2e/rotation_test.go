package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// rotationNow reads the open rotation, or the last one.
func rotationNow(t *testing.T) rotation.View {
	t.Helper()
	return decode[rotation.View](t, ok(t, "rotate", "show", "-o", "json"))
}

// waitsFor reports whether the rotation has not confirmed a node in its phase.
func waitsFor(v rotation.View, nodeHost string) bool {
	return slices.ContainsFunc(v.Progress.Waiting, func(n rotation.Waiting) bool { return n.Host == nodeHost })
}

// reaches waits until the rotation is in a phase. It waives all nodes but the test's: other
// tests leave nodes without an agent, or with one that does not do what it is asked.
func reaches(t *testing.T, phase rotation.Phase, but ...string) {
	t.Helper()
	eventually(t, "phase "+string(phase), func() bool {
		v := rotationNow(t)
		if v.Phase == phase {
			return true
		}
		for _, n := range v.Progress.Waiting {
			if !slices.Contains(but, n.Host) {
				ok(t, "rotate", "waive", "--node", n.NodeID, "--reason", "of another test")
			}
		}
		return false
	})
}

// bundleOf returns the CAs of a bundle.
func bundleOf(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	certs, err := trust.ParseCertificates(string(text))
	require.NoError(t, err)
	for _, c := range certs {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// TestNodeCARotation replaces the node CA of a stack with a node at work, one that is off, and
// a worker that is killed in the middle. The node that was off recovers when it returns.
func TestNodeCARotation(t *testing.T) {
	here, id := enrolled(t, "ca-here")
	away, awayID := register(t, "ca-away")
	file := filepath.Join(t.TempDir(), "bundle.json")
	ok(t, "node", "enroll", away, "--no-wait", "--bundle", file)
	off := newMachine(t, away, readPrivate[trust.BootstrapBundle](t, file))
	off.start()
	eventually(t, "the second node is active", func() bool { return show(t, away).State == lifecycle.NodeActive })
	off.stop()
	bundle, awayBundle := filepath.Join(agentDir(here), "node-cert-ca-bundle.crt"), off.path(trust.DefaultNodeCABundlePath)
	first := show(t, id).Identity
	ok(t, "rotate", "node-ca", "--reason", "yearly", "--grace", "0s")

	eventually(t, "the node has both CAs, and the other is named", func() bool {
		return len(bundleOf(t, bundle)) == 2 && !waitsFor(rotationNow(t), here) && waitsFor(rotationNow(t), away)
	})
	require.Equal(t, rotation.Stage, rotationNow(t).Phase)
	require.Equal(t, first.Issuer, show(t, id).Identity.Issuer)
	ok(t, "rotate", "waive", "--node", away, "--reason", "in repair")
	kill(t, "worker", here)
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)

	reaches(t, rotation.Activate, here)
	reaches(t, rotation.Grace, here)
	second := show(t, id).Identity
	require.NotEqual(t, first.Issuer, second.Issuer)
	require.Equal(t, first.Issuer, show(t, awayID).Identity.Issuer)
	act(t, "node", "provision", here) // tasks run meanwhile
	ok(t, "rotate", "approve", "--reason", "CHG-1")
	reaches(t, rotation.Retire, here)
	eventually(t, "the rotation ends", func() bool { return rotationNow(t).Outcome == rotation.Completed })
	require.Len(t, bundleOf(t, bundle), 1)

	off.start()
	eventually(t, "the node that was off recovers", func() bool {
		n := show(t, awayID)
		return n.Identity != nil && n.Identity.Issuer == second.Issuer && n.State == lifecycle.NodeActive
	})
	eventually(t, "it has the new CA", func() bool { return slices.Equal(bundleOf(t, awayBundle), bundleOf(t, bundle)) })
	require.Contains(t, ok(t, "audit", "--node", awayID, "-o", "json").stdout, audit.IdentityIssued)
	ok(t, "audit", "--verify")
}
