package vm

import (
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// swept: a machine that appears after its node was removed, as after a late success of libvirt, is
// a leftover. The sweep deletes it after the grace period, which the test shortens, and not before.
func swept(s *site) {
	const name = "swept"
	s.register(name, libvirt.Name)
	s.run("node", "provision", name, "--wait")
	n := s.node(name)
	domain := "gpuaas-" + n.Instance.InstanceID
	description := filepath.Join(s.t.TempDir(), "domain.xml")
	require.NoError(s.t, os.WriteFile(description, []byte(s.host.Virsh(s.t, "dumpxml", "--inactive", domain)), 0o600))
	s.run("node", "retire", name, "--drain", "--yes", "--reason", "test", "--wait")
	s.run("node", "remove", name, "--yes", "--reason", "test", "--wait")
	require.Empty(s.t, s.domains())
	s.host.Virsh(s.t, "define", description)

	s.sweep()
	s.eventually("the sweep finds the machine", func() bool { return s.leftovers("deleted_at IS NULL") == 1 })
	s.sweep()
	s.eventually("the sweep sees the machine again", func() bool { return s.leftovers("last_seen > first_seen") == 1 })
	require.Equal(s.t, []string{domain}, s.domains(), "before the end of the grace period")
	harness.Query(s.t, s.stack, nil, "UPDATE machine_leftovers SET first_seen = first_seen - interval '1 hour'")
	s.sweep()
	s.eventually("the sweep deletes the machine", func() bool { return s.leftovers("deleted_at IS NOT NULL") == 1 })
	require.Empty(s.t, s.domains())
}

// sweep starts a round of the sweep.
func (s *site) sweep() {
	s.t.Helper()
	c, err := client.Dial(client.Options{HostPort: s.stack.Getenv("TEMPORAL_ADDRESS"), Namespace: s.stack.Getenv("TEMPORAL_NAMESPACE")})
	require.NoError(s.t, err)
	defer c.Close()
	require.NoError(s.t, c.ScheduleClient().GetHandle(s.t.Context(), lifecycle.ScheduleSweep).Trigger(s.t.Context(), client.ScheduleTriggerOptions{}))
}

// leftovers counts the machines that the sweep found and that satisfy a condition.
func (s *site) leftovers(condition string) (n int) {
	s.t.Helper()
	harness.Query(s.t, s.stack, func(r pgx.Rows) { require.NoError(s.t, r.Scan(&n)) }, "SELECT count(*) FROM machine_leftovers WHERE class = 'leftover' AND "+condition)
	return n
}
