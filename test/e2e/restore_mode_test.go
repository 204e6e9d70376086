package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/restore"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// restoredFleet is the number of nodes of TestRestoreModeOfFleet.
const restoredFleet = 50

// TestRestoreModeOfFleet dumps the database, works on every node of a fleet, and restores the
// dump with the procedure of docs/operating.md while agents poll and operations are open.
// A revocation of the task key is lost and repeated. New work then completes on every node without
// a command about a single node. No identity is locked, no operation stays open, and the gap of the
// audit trail is reported.
func TestRestoreModeOfFleet(t *testing.T) {
	prefix := host(t, "back")
	f := startFleet(t, restoredFleet, prefix, "--task-time", "1ms")
	f.waitActive(t)
	ids := map[string]string{}
	for name, n := range f.nodes(t) {
		ids[name] = n.ID
	}
	dump := filepath.Join(t.TempDir(), "gpuaas.dump")
	owner := ownerURL(t)
	pgTool(t, "pg_dump", "--format=custom", "--file="+dump, owner.String())

	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionReactivate, lifecycle.ActionDrain} {
		workOnAll(t, ids, a)
	}
	revoked := revokeTaskKey(t, f)
	open := 0
	for _, id := range ids {
		if open++; open <= 5 {
			tryStart(t, id, lifecycle.ActionReactivate) // open when the dump is restored
		}
	}
	restored := restoreDump(t, owner, dump)
	require.True(t, restored.On)
	require.Positive(t, restored.AuditGapSeconds)

	eventually(t, "every agent is back", func() bool { // agents of other tests have ended
		return !slices.ContainsFunc(restoreMode(t, owner, "status").Absent, func(host string) bool { return strings.HasPrefix(host, prefix+"-") })
	})
	lost := restoreMode(t, owner, "status").LostSets
	require.GreaterOrEqual(t, lost, int64(restoredFleet))
	shown := run(t, "stuck")
	require.Contains(t, shown.stdout+shown.stderr, "a verifier set that the database does not have")
	require.Contains(t, shown.stdout+shown.stderr, "gpuaas trust revoke "+revoked)
	require.Equal(t, revoked, revokeTaskKey(t, f), "the record has the revoked key as the active one again")
	require.Zero(t, restoreMode(t, owner, "status").LostSets)
	workOnAll(t, ids, lifecycle.ActionDrain)
	s := restoreMode(t, owner, "status")
	require.GreaterOrEqual(t, s.NodesAhead, int64(restoredFleet))
	require.GreaterOrEqual(t, s.TasksMissing, int64(3*restoredFleet))
	require.Zero(t, queryNumber(t, "SELECT count(*) FROM nodes WHERE identity_locked_at IS NOT NULL AND host LIKE $1", prefix+"-%"))
	shown = run(t, "stuck")
	require.Contains(t, shown.stdout+shown.stderr, "restore mode")
	require.False(t, restoreMode(t, owner, "stop").On)
	ok(t, "audit", "--verify")
}

// revokeTaskKey revokes the active task key, and waits until the nodes of the fleet have the set. It
// waives the nodes of other tests. It returns the key.
func revokeTaskKey(t *testing.T, f *simulatedFleet) string {
	t.Helper()
	trusted := decode[rotation.Trust](t, ok(t, "trust", "show", "-o", "json"))
	i := slices.IndexFunc(trusted.Keys, func(k rotation.Key) bool { return k.State == trust.KeyActive })
	require.GreaterOrEqual(t, i, 0)
	key := trusted.Keys[i].KeyID
	ok(t, "trust", "revoke", key, "--reason", "test")
	hosts := f.nodes(t)
	eventually(t, "the nodes have the revocation", func() bool {
		v := rotationNow(t)
		for _, n := range v.Progress.Waiting {
			if _, ours := hosts[n.Host]; !ours {
				run(t, "rotate", "waive", "--node", n.NodeID, "--reason", "of another test") // the next round repeats it if it failed
			}
		}
		return v.Outcome == rotation.Completed
	})
	return key
}

// restoreDump restores a dump into a new database, starts the restore mode there and then
// renames that database to the name of the one in use.
func restoreDump(t *testing.T, owner *url.URL, dump string) restore.Mode {
	t.Helper()
	name := strings.TrimPrefix(owner.Path, "/")
	fresh, maintenance := *owner, *owner
	fresh.Path, maintenance.Path = "/"+name+"_restored", "/postgres"
	sql := func(statements ...string) {
		conn, err := pgx.Connect(t.Context(), maintenance.String())
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }() // the statements are done
		for _, s := range statements {
			_, err := conn.Exec(t.Context(), s)
			require.NoError(t, err, s)
		}
	}
	sql("CREATE DATABASE " + name + "_restored")
	pgTool(t, "pg_restore", "--exit-on-error", "--dbname="+fresh.String(), dump)
	started := restoreMode(t, &fresh, "start", "--reason", "test", "--for", "30m")
	sql("ALTER DATABASE "+name+" ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'")
	harness.Poll(t, func() bool {
		conn, err := pgx.Connect(t.Context(), maintenance.String())
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }() // read only
		_, err = conn.Exec(t.Context(), "ALTER DATABASE "+name+" RENAME TO "+name+"_lost")
		return err == nil
	}, conditionTimeout, 100*time.Millisecond, "the connections to the lost database end")
	sql("ALTER DATABASE " + name + "_restored RENAME TO " + name)
	return started
}

// restoreMode runs gpuaas admin restore-mode with a database.
func restoreMode(t *testing.T, database *url.URL, args ...string) restore.Mode {
	t.Helper()
	c := shared.command(append(append([]string{"admin", "restore-mode"}, args...), "-o", "json")...)
	c.Env = append(c.Env, "GPUAAS_DATABASE_URL="+database.String())
	c.Stderr = t.Output()
	out, err := c.Output()
	require.NoError(t, err)
	return decode[restore.Mode](t, result{stdout: string(out)})
}

// workOnAll completes an action on each node. A rejected start is repeated, as automation
// does: a run that no record continues may still have to end.
func workOnAll(t *testing.T, ids map[string]string, a lifecycle.Action) {
	t.Helper()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			harness.Poll(t, func() bool { return tryStart(t, id, a) }, conditionTimeout, time.Second, "the "+string(a)+" starts")
		})
	}
	wg.Wait()
	var list []string
	for _, id := range ids {
		list = append(list, id)
	}
	eventually(t, "each "+string(a)+" ends", func() bool {
		return queryNumber(t, "SELECT count(*) FROM operations WHERE node_id = ANY($1::uuid[]) AND ended_at IS NULL", list) == 0
	})
	require.Equal(t, len(ids), queryNumber(t, `SELECT count(*) FROM nodes n JOIN LATERAL (SELECT * FROM operations o WHERE o.node_id = n.node_id
		ORDER BY o.started_at DESC LIMIT 1) o ON true WHERE n.node_id = ANY($1::uuid[]) AND o.action = $2 AND o.status = 'completed'`, list, string(a)))
}

// tryStart starts an action and reports whether it was accepted.
func tryStart(t *testing.T, id string, a lifecycle.Action) bool {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, shared.Getenv("GPUAAS_API_URL")+"/api/v1/admin/nodes/"+id+"/"+string(a),
		strings.NewReader(fmt.Sprintf(`{"reason":"test","start_within_seconds":%d}`, startWithin)))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+shared.Getenv("GPUAAS_API_TOKEN"))
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = response.Body.Close() // the status is enough
	return response.StatusCode == http.StatusAccepted
}

// ownerURL is the URL of the stack's database for the owner of its tables.
func ownerURL(t *testing.T) *url.URL {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(shared.Dir, "secrets", "database-url"))
	require.NoError(t, err)
	u, err := url.Parse(strings.TrimSpace(string(raw)))
	require.NoError(t, err)
	return u
}

// pgTool runs a client program of Postgres.
func pgTool(t *testing.T, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		found, globErr := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
		require.NoError(t, globErr)
		require.NotEmpty(t, found, "%s: %v", name, err)
		path = found[len(found)-1]
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, string(out))
}
