package webui

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
)

// outageScenes are those of a service that all operations need. They run one after the other,
// after the others.
func outageScenes() map[string]scene {
	outage := func(host string, begin func(t *testing.T) (end func())) scene {
		var end func()
		return scene{host: host,
			park: func(t *testing.T, host string) {
				t.Helper()
				stack.Enroll(t, host, "cpu-dev")
				end = begin(t)
				stack.Run(t, "node", "drain", host, "--yes", "--no-wait", "--reason", "RMA-4411")
				endRetries(t, host, "EnqueueNodeTask")
			},
			resolve: func(t *testing.T, _ *page, op wire.StuckOperation) {
				t.Helper()
				end()
				ended(t, op.Host)
			}}
	}
	return map[string]scene{
		lifecycle.ReasonVaultSealed:      outage("gpu-24", sealVault),
		lifecycle.ReasonVaultUnreachable: outage("gpu-25", stopVault),
		lifecycle.ReasonClockSkew:        outage("gpu-26", skewClock),
	}
}

// once returns a function that runs f at its first call, and at the latest when the test ends.
func once(t *testing.T, f func()) (end func()) {
	t.Helper()
	end = sync.OnceFunc(f)
	t.Cleanup(end)
	return end
}

// sealVault seals the stack's Vault until end is called.
func sealVault(t *testing.T) (end func()) {
	t.Helper()
	vault := vaulttest.InStack(t, stack.Stack)
	vault.Seal(t)
	return func() { vault.Unseal(t) }
}

// stopVault suspends the stack's Vault until end is called.
func stopVault(t *testing.T) (end func()) {
	t.Helper()
	parts, err := stack.Parts(t.Context())
	require.NoError(t, err)
	pid := parts["vault"].PID
	require.Positive(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	return once(t, func() { require.NoError(t, syscall.Kill(pid, syscall.SIGCONT)) })
}

// skewClock makes the database's clock wrong for new connections until end is called.
func skewClock(t *testing.T) (end func()) {
	t.Helper()
	setting := func(clause string) {
		t.Helper()
		exec(t, "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I "+clause+"', current_database()); END $do$")
		exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	exec(t, `CREATE SCHEMA skewed; GRANT USAGE ON SCHEMA skewed TO PUBLIC;
CREATE FUNCTION skewed.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() - interval '10 minutes' $$`)
	setting("SET search_path = skewed, pg_catalog, public")
	end = once(t, func() { setting("RESET search_path") })
	stack.Eventually(t, "the worker compares its clock", func() bool {
		var list wire.StuckList
		return stack.Read(t, &list, "stuck") && slices.ContainsFunc(list.Faults, func(f wire.ControlPlaneFault) bool { return f.Component == "clock" })
	})
	return end
}
