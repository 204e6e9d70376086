package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
)

func tokenOf(r trust.Role) string { return "token-of-the-" + string(r) + "-of-two-replicas" }

// replicas starts two more APIs over the stack, with a token for each role, and returns the addresses
// of their consoles.
func replicas(t *testing.T) (consoles [2]string) {
	t.Helper()
	needStack(t)
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	var lines strings.Builder
	for _, r := range trust.Roles() {
		sum := sha256.Sum256([]byte(tokenOf(r)))
		fmt.Fprintf(&lines, "%s-1 %s %s\n", r, r, hex.EncodeToString(sum[:]))
	}
	require.NoError(t, os.WriteFile(tokens, []byte(lines.String()), 0o600))
	env, err := stack.Command(t.Context(), "dev", "env", "api", "--dir", stack.Dir).Output()
	require.NoError(t, err)
	for i := range consoles {
		admin := harness.FreeAddress(t)
		consoles[i] = "http://" + admin + "/console"
		replica(t, append(devstack.ParseExports(env), "GPUAAS_ADMIN_ADDR="+admin, "GPUAAS_ADMIN_TOKENS_FILE="+tokens,
			"GPUAAS_METRICS_ADDR="+harness.FreeAddress(t), fmt.Sprint("GPUAAS_STATE_DIR=", filepath.Join(dir, fmt.Sprint(i)))))
		harness.Poll(t, func() bool {
			res, err := harness.Do(t.Context(), http.DefaultClient, http.MethodGet, consoles[i]+"/login", nil)
			return err == nil && res.Status == http.StatusOK
		}, conditionTimeout, conditionEvery, "the replica serves the console")
	}
	return consoles
}

// replica runs an API until the end of the test.
func replica(t *testing.T, env []string) {
	t.Helper()
	log := &harness.Buffer{}
	c := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(filepath.Dir(stack.Bin), "gpuaas-api"), "--serve=admin,console")
	c.Env, c.Stderr = append(os.Environ(), env...), log
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = c.Wait()                          // its exit code does not matter
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// records counts what a change of anything adds to.
func records(t *testing.T) (n [3]int) {
	t.Helper()
	harness.Query(t, stack, func(rows pgx.Rows) { require.NoError(t, rows.Scan(&n[0], &n[1], &n[2])) },
		"SELECT (SELECT count(*) FROM operations), (SELECT count(*) FROM node_tasks), (SELECT count(*) FROM audit_events WHERE actor = 'viewer-1')")
	return n
}

// TestViewerAtTwoReplicas: at both replicas, a viewer's session opens each page of a node, and each form
// that it sends is refused, and changes nothing.
func TestViewerAtTwoReplicas(t *testing.T) {
	const host = "con-viewer"
	consoles := replicas(t)
	blocked(t, host)
	eventually(t, "the drain is parked", func() bool { return operation(t, host).Operation.Stuck != nil })
	n, op := show(t, host), operation(t, host)
	c := loginAt(t, consoles[0], tokenOf(trust.RoleViewer))
	before, forms := records(t), 0
	ids := strings.NewReplacer("{node}", n.ID, "{operation}", op.Operation.OperationID, "{task}", op.Operation.OperationID, "{run}", "1", "{decision}", "approve")
	for _, at := range consoles {
		for _, r := range console.Routes() {
			if r.Method == http.MethodGet {
				continue
			}
			forms++
			status, body := c.send(at+ids.Replace(r.Path), url.Values{"reason": {"none"}, "key": {"key-" + n.ID}, "typed": {host},
				"phase": {op.Operation.Stuck.Phase}, "since": {op.Operation.Stuck.Since.Format("2006-01-02T15:04:05.999999999Z07:00")}})
			require.Equal(t, http.StatusForbidden, status, "%s: %s", r.Path, body)
		}
		status, body := c.send(at+"/nodes/"+n.ID, nil)
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, host)
		require.NotRegexp(t, `href="/console/nodes/[^"]+/(uncordon|quarantine|lock)"`, body, "a viewer has no buttons")
	}
	require.Greater(t, forms, 2*10)
	require.Equal(t, before, records(t))
	require.Equal(t, op.Operation.Stuck.Since, operation(t, host).Operation.Stuck.Since)
	gpuaas(t, "op", "cancel", host, "--reason", "the test is over", "--yes")
}

// TestDoubleClickAtTwoReplicas: two requests of one form, one to each replica at the same time, start
// one operation.
func TestDoubleClickAtTwoReplicas(t *testing.T) {
	const host = "con-twice"
	consoles := replicas(t)
	node(t, host)
	c := loginAt(t, consoles[0], tokenOf(trust.RoleOperator))
	form := "/nodes/" + show(t, host).ID + "/quarantine"
	_, page := c.send(consoles[1]+form, nil)
	key := regexp.MustCompile(`name="key" value="([^"]+)"`).FindStringSubmatch(page)
	require.Len(t, key, 2, page)
	var sending sync.WaitGroup
	var pages [2]string
	for i, at := range consoles {
		sending.Go(func() { _, pages[i] = c.send(at+form, url.Values{"key": {key[1]}, "reason": {"RMA-4411"}}) })
	}
	sending.Wait()
	for _, p := range pages {
		require.Contains(t, p, operation(t, host).Operation.OperationID)
	}
	var list wire.OperationList
	require.True(t, read(t, &list, "op", "list", "--node", host, "--action", string(lifecycle.ActionQuarantine)))
	require.Len(t, list.Operations, 1)
}
