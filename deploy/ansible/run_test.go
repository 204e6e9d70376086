//go:build ansible

package ansible

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/apitest"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

const enrollToken = "gpuet_canary-enrollment-token"

// play runs a playbook on the inventory and returns its output.
func play(t *testing.T, playbook, inventory string, args ...string) (string, error) {
	t.Helper()
	program := need.Program(t, "ansible-playbook", "install ansible-core")
	c := exec.CommandContext(t.Context(), program, append([]string{"-v", "-i", inventory, playbook}, args...)...)
	c.Env = append(os.Environ(), "GPUAAS_API_TOKEN="+apitest.Token, "ANSIBLE_NOCOLOR=1", "ANSIBLE_LOCALHOST_WARNING=False", "ANSIBLE_HOME="+t.TempDir())
	out, err := c.CombinedOutput()
	assert.NotContains(t, string(out), enrollToken)
	assert.NotContains(t, string(out), apitest.Token)
	return string(out), err
}

// inventoryOf writes an inventory whose hosts are this machine.
func inventoryOf(t *testing.T, url string, hosts ...string) string {
	t.Helper()
	all := map[string]any{}
	for _, h := range hosts {
		all[h] = map[string]any{"gpuaas_labels": map[string]string{"rack": "r7"}}
	}
	text, err := yaml.Marshal(map[string]any{"gpu_nodes": map[string]any{"hosts": all, "vars": map[string]any{
		"gpuaas_api_url": url, "gpuaas_sku": "cpu-dev", "gpuaas_region": "region-1", "gpuaas_wait_delay": 1,
		"ansible_connection": "local", "ansible_become": false, "ansible_python_interpreter": "auto_silent"}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "inventory.yml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// A run registers and enrolls the hosts. A second run changes nothing, and a changed label only the
// label.
func TestRegister(t *testing.T) {
	var server *apitest.Server
	ran := filepath.Join(t.TempDir(), "ran")
	// The bootstrap script of the test needs no agent's package: it records that it ran.
	server = apitest.New(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, is := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/admin/nodes/"), "/bootstrap-script")
			if !is {
				next.ServeHTTP(w, r)
				return
			}
			server.SetState(host, lifecycle.NodeActive)
			w.Header().Set("Content-Type", "application/json")
			text, _ := json.Marshal(wire.BootstrapScriptResponse{Script: fmt.Sprintf("# %s\necho %s \"$@\" >> %s\n", enrollToken, host, ran)})
			_, _ = w.Write(text)
		})
	})
	c, err := client.New(server.URL, client.WithToken(apitest.Token))
	require.NoError(t, err)
	inventory := inventoryOf(t, server.URL, "gpu-17", "gpu-18")
	out, err := play(t, "register.yml", inventory)
	require.NoError(t, err, out)
	for _, host := range []string{"gpu-17", "gpu-18"} {
		n, err := c.Node(t.Context(), host)
		require.NoError(t, err)
		assert.Equal(t, lifecycle.NodeActive, n.State)
		assert.Equal(t, map[string]string{"rack": "r7"}, n.Labels)
	}
	text, err := os.ReadFile(ran)
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"gpu-17 --force", "gpu-18 --force"}, strings.Split(strings.TrimSpace(string(text)), "\n"))

	out, err = play(t, "register.yml", inventory)
	require.NoError(t, err, out)
	assert.Equal(t, 2, strings.Count(out, "changed=0"), out)

	_, err = c.SetNode(t.Context(), "gpu-17", wire.NodeChange{Labels: map[string]string{"rack": "r9", "old": "x"}})
	require.NoError(t, err)
	out, err = play(t, "register.yml", inventory)
	require.NoError(t, err, out)
	assert.Equal(t, 1, strings.Count(out, "changed=1"), out)
	n, err := c.Node(t.Context(), "gpu-17")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"rack": "r7"}, n.Labels)
}

// A drain is awaited, a drained node is not drained again, and a parked drain stops the play.
func TestDrain(t *testing.T) {
	server := apitest.New(t, nil)
	c, err := client.New(server.URL, client.WithToken(apitest.Token))
	require.NoError(t, err)
	n, err := c.RegisterNode(t.Context(), wire.RegisterNodeRequest{Host: "gpu-17", SKU: "cpu-dev", RegionCode: "region-1"})
	require.NoError(t, err)
	server.SetState(n.ID, lifecycle.NodeActive)
	inventory := inventoryOf(t, server.URL, "gpu-17")
	out, err := play(t, "drain.yml", inventory)
	require.Error(t, err)
	assert.Contains(t, out, "set the reason of the drain")

	type result struct {
		out string
		err error
	}
	drained := make(chan result, 1)
	drain := func() {
		out, err := play(t, "drain.yml", inventory, "-e", "reason=CHG-204")
		drained <- result{out, err}
	}
	held := func() bool {
		n, err := c.Node(t.Context(), "gpu-17")
		return err == nil && n.Operation != nil
	}
	go drain()
	harness.Eventually(t, "a drain", held)
	server.Park(n.ID)
	parked := harness.Receive(t, "the end", drained)
	require.Error(t, parked.err)
	assert.Contains(t, parked.out, "needs a decision: the test parked it")

	server.Finish(n.ID, lifecycle.OperationCanceled, lifecycle.NodeActive)
	go drain()
	harness.Eventually(t, "a drain", held)
	server.Finish(n.ID, lifecycle.OperationCanceled, lifecycle.NodeActive)
	canceled := harness.Receive(t, "the end", drained)
	require.Error(t, canceled.err)
	assert.Contains(t, canceled.out, "the drain of gpu-17 ended, and the node is active")

	out, err = play(t, "drain.yml", inventory, "-e", "reason=CHG-204", "-e", "gpuaas_wait_retries=2")
	require.Error(t, err)
	assert.Contains(t, out, "Wait for the end of the drain: not done after 2 reads; next: gpuaas op show gpu-17")

	go drain()
	harness.Eventually(t, "a drain", held)
	server.Finish(n.ID, lifecycle.OperationCompleted, lifecycle.NodeDrained)
	done := harness.Receive(t, "the end", drained)
	require.NoError(t, done.err, done.out)
	out, err = play(t, "drain.yml", inventory, "-e", "reason=CHG-204")
	require.NoError(t, err, out)
	assert.Contains(t, out, "changed=0")
}

// A task that fails shows the message of the API or of the script, without the token.
func TestErrors(t *testing.T) {
	server := apitest.New(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/bootstrap-script") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			text, _ := json.Marshal(wire.BootstrapScriptResponse{Script: "echo no space for " + enrollToken + " >&2\nexit 1\n"})
			_, _ = w.Write(text)
		})
	})
	inventory := inventoryOf(t, server.URL, "gpu-17")
	out, err := play(t, "drain.yml", inventory, "-e", "reason=CHG-204")
	require.Error(t, err)
	assert.Contains(t, out, `Read the node: no node \"gpu-17\"; next: gpuaas node list`)

	out, err = play(t, "register.yml", inventory, "-e", "gpuaas_sku=unknown")
	require.Error(t, err)
	assert.Contains(t, out, "Register the node: ")
	assert.Contains(t, out, "unknown")

	out, err = play(t, "register.yml", inventory)
	require.Error(t, err)
	assert.Contains(t, out, "Run the bootstrap script: no space for TOKEN")
}
