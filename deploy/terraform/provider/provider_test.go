package provider

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/apitest"
)

var update = flag.Bool("update", false, "write the tables of README.md")

// configured returns the provider on a new admin API.
func configured(t *testing.T) (*terraform, *apitest.Server, *client.Client) {
	t.Helper()
	server := apitest.New(t, nil)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(apitest.Token), 0o600))
	f := start(t)
	require.Empty(t, f.configure(object{"address": server.URL, "token_file": file}))
	api, err := client.New(server.URL, client.WithToken(apitest.Token))
	require.NoError(t, err)
	return f, server, api
}

func gpu17() object {
	return object{"host": "gpu-17", "sku": "cpu-dev", "region": "region-1", "labels": object{"rack": "r7", "tier": "test"}}
}

func TestNode(t *testing.T) {
	f, _, api := configured(t)
	_, planned := f.plan("gpuaas_node", nil, gpu17())
	assert.Equal(t, unknown, planned["id"])
	assert.Equal(t, "manual", planned["onboarding_mode"])

	state, fault := f.apply("gpuaas_node", nil, gpu17())
	require.Empty(t, fault)
	assert.Equal(t, "registered", state["state"])
	assert.Equal(t, object{"rack": "r7", "tier": "test"}, state["labels"])
	node, err := api.Node(t.Context(), "gpu-17")
	require.NoError(t, err)
	assert.Equal(t, node.ID, state["id"])
	assert.Equal(t, state, f.refresh("gpuaas_node", state))
	p, planned := f.plan("gpuaas_node", state, gpu17())
	assert.Empty(t, p.RequiresReplace)
	assert.Equal(t, state, planned, "a second apply changes nothing")

	changed := gpu17()
	changed["region"], changed["labels"] = "region-2", object{"rack": "r8"}
	state, fault = f.apply("gpuaas_node", state, changed)
	require.Empty(t, fault)
	assert.Equal(t, "region-2", state["region"])
	assert.Equal(t, object{"rack": "r8"}, state["labels"])
	node, err = api.Node(t.Context(), "gpu-17")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"rack": "r8"}, node.Labels)

	changed["host"] = "gpu-18"
	p, _ = f.plan("gpuaas_node", state, changed)
	require.Len(t, p.RequiresReplace, 1)
	assert.Contains(t, p.RequiresReplace[0].String(), "host")
}

func TestNodeErrors(t *testing.T) {
	f, _, _ := configured(t)
	_, fault := f.apply("gpuaas_node", nil, gpu17())
	require.Empty(t, fault)
	state, fault := f.apply("gpuaas_node", nil, gpu17())
	assert.Contains(t, fault, "Cannot register node gpu-17")
	assert.Contains(t, fault, "Next: gpuaas node show gpu-17")
	assert.Nil(t, state)
	unlisted := gpu17()
	unlisted["host"], unlisted["sku"] = "gpu-18", "h900"
	_, fault = f.apply("gpuaas_node", nil, unlisted)
	assert.Contains(t, fault, "Next: gpuaas sku list")
}

func TestNodeImport(t *testing.T) {
	f, _, api := configured(t)
	node, err := api.RegisterNode(t.Context(), wire.RegisterNodeRequest{Host: "gpu-17", SKU: "cpu-dev", RegionCode: "region-1",
		Labels: map[string]string{"rack": "r7", "tier": "test"}})
	require.NoError(t, err)
	byHost, fault := f.adopt("gpuaas_node", "gpu-17")
	require.Empty(t, fault)
	byID, fault := f.adopt("gpuaas_node", node.ID)
	require.Empty(t, fault)
	assert.Equal(t, byHost, byID)
	_, planned := f.plan("gpuaas_node", byHost, gpu17())
	assert.Equal(t, byHost, planned, "the imported node is as configured")
	_, fault = f.adopt("gpuaas_node", "gpu-99")
	assert.Contains(t, fault, "Cannot import node gpu-99")
}

func TestNodeDestroy(t *testing.T) {
	f, server, api := configured(t)
	state, fault := f.apply("gpuaas_node", nil, gpu17())
	require.Empty(t, fault)
	id := state["id"].(string)

	server.SetState(id, lifecycle.NodeActive)
	kept, fault := f.apply("gpuaas_node", state, nil)
	assert.Contains(t, fault, "Cannot remove node gpu-17")
	assert.Contains(t, fault, "gpuaas node retire")
	assert.Equal(t, "gpu-17", kept["host"], "a rejected node stays in the state")

	server.SetState(id, lifecycle.NodeRetired)
	removed := make(chan string, 1)
	remove := func() {
		_, fault := f.apply("gpuaas_node", state, nil)
		removed <- fault
	}
	go remove()
	held := func() bool {
		n, err := api.Node(t.Context(), id)
		return err == nil && n.Operation != nil
	}
	harness.Eventually(t, "the removal", held)
	server.Park(id)
	assert.Contains(t, harness.Receive(t, "the error", removed), "The operation needs a decision: the test parked it")
	server.Finish(id, lifecycle.OperationCanceled, lifecycle.NodeRetired)

	go remove()
	harness.Eventually(t, "the removal", held)
	server.Finish(id, lifecycle.OperationCompleted, lifecycle.NodeRemoved)
	require.Empty(t, harness.Receive(t, "the end", removed))
	assert.Nil(t, f.refresh("gpuaas_node", state), "a removed node leaves the state")
	_, fault = f.apply("gpuaas_node", state, nil)
	require.Empty(t, fault, "it is removed already")
}

func TestSKU(t *testing.T) {
	f, _, api := configured(t)
	config := object{"name": "b300", "gpu_model": "B300", "max_gpus": 8, "min_cpus": 64}
	state, fault := f.apply("gpuaas_sku", nil, config)
	require.Empty(t, fault)
	assert.Equal(t, object{"name": "b300", "gpu_model": "B300", "max_gpus": int64(8), "min_cpus": int64(64), "min_memory_bytes": int64(0),
		"workload_driver": "", "active": true}, state)
	assert.Equal(t, state, f.refresh("gpuaas_sku", state))
	imported, fault := f.adopt("gpuaas_sku", "b300")
	require.Empty(t, fault)
	assert.Equal(t, state, imported)

	config["max_gpus"] = 4
	p, _ := f.plan("gpuaas_sku", state, config)
	assert.Contains(t, texts(p.Diagnostics), "SKU b300 cannot be changed")

	_, fault = f.apply("gpuaas_sku", state, nil)
	require.Empty(t, fault)
	sku, err := api.SKU(t.Context(), "b300")
	require.NoError(t, err)
	assert.False(t, sku.Active)
}

func TestDataSources(t *testing.T) {
	f, _, api := configured(t)
	for host, rack := range map[string]string{"gpu-1": "r7", "gpu-2": "r8", "gpu-3": "r7"} {
		_, err := api.RegisterNode(t.Context(), wire.RegisterNodeRequest{Host: host, SKU: "cpu-dev", RegionCode: "region-1", Labels: map[string]string{"rack": rack}})
		require.NoError(t, err)
	}
	one, fault := f.data("gpuaas_node", object{"host": "gpu-2"})
	require.Empty(t, fault)
	assert.Equal(t, object{"rack": "r8"}, one["labels"])
	assert.Equal(t, "registered", one["state"])
	_, fault = f.data("gpuaas_node", object{"host": "gpu-9"})
	assert.Contains(t, fault, "Cannot read node gpu-9")

	for selector, want := range map[any][]string{"rack=r7": {"gpu-1", "gpu-3"}, nil: {"gpu-1", "gpu-2", "gpu-3"}, "rack=r9": nil} {
		list, fault := f.data("gpuaas_nodes", object{"selector": selector})
		require.Empty(t, fault)
		var hosts []string
		for _, n := range list["nodes"].([]any) {
			hosts = append(hosts, n.(object)["host"].(string))
		}
		assert.Equal(t, want, hosts, "%v", selector)
	}
	_, fault = f.data("gpuaas_nodes", object{"selector": "rack in"})
	assert.Contains(t, fault, "Cannot list nodes")
}

func TestProviderConfiguration(t *testing.T) {
	for _, name := range []string{envAddress, envToken, envTokenFile} {
		t.Setenv(name, "")
	}
	f := start(t)
	assert.Contains(t, f.configure(object{"address": "https://gpuaas.example.com"}), "there is no token")
	t.Setenv(envToken, "secret-token-0123456789")
	assert.Contains(t, f.configure(object{}), "there is no address")
	fault := f.configure(object{"address": "http://gpuaas.example.com"})
	assert.Contains(t, fault, "not encrypted")
	assert.NotContains(t, fault, "secret-token")
	assert.Contains(t, f.configure(object{"address": "https://gpuaas.example.com", "ca_file": "missing.pem"}), "missing.pem")
	t.Setenv(envAddress, "https://gpuaas.example.com")
	assert.Empty(t, f.configure(object{}))
}

// The tables of README.md are those of the schemas. go test ./provider -run TestReadme -update writes
// them.
func TestReadme(t *testing.T) {
	s := start(t).schemas
	const file = "../README.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var b strings.Builder
	table(&b, "Provider `gpuaas`", s.Provider)
	for _, kind := range slices.Sorted(maps.Keys(s.ResourceSchemas)) {
		table(&b, "Resource `"+kind+"`", s.ResourceSchemas[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(s.DataSourceSchemas)) {
		table(&b, "Data source `"+kind+"`", s.DataSourceSchemas[kind])
	}
	want := regexp.MustCompile(`(?s)<!-- schemas -->.*<!-- end -->`).ReplaceAllLiteralString(string(text), "<!-- schemas -->\n"+b.String()+"<!-- end -->")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./provider -run TestReadme -update")
}

func table(b *strings.Builder, title string, s *tfprotov6.Schema) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\n| attribute | | |\n| --- | --- | --- |\n", title, s.Block.Description)
	for _, a := range s.Block.Attributes {
		use := "read only"
		switch {
		case a.Required:
			use = "required"
		case a.Optional:
			use = "optional"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", a.Name, use, a.Description)
	}
}
