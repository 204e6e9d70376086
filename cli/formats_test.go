package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestOutputFormats: every list and show command has every format, except -o wide where
// it would show nothing more, and the formats for programs have the same content.
func TestOutputFormats(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"node list", "node show gpu-17", "op list", "op show gpu-17", "stuck", "task list --all",
		"task show " + taskID, "audit", "config get-contexts", "sku list", "sku show a100", "node history gpu-17",
		"provider list", "provider show libvirt", "instance list", "instance show " + instanceID} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.vars["GPUAAS_CONFIG"] = h.env.dir + "/config.yaml"
			require.NoError(t, h.env.editConfig(func(c *config) error { return c.set("main", h.api.server.URL, "") }))
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
			h.temporal.parked = h.temporal.statuses
			h.api.operations = []wire.OperationSummary{lostDrain()}
			h.api.tasks = []wire.TaskView{lostTask()}
			h.api.streams, h.api.audit = []string{nodeID}, map[string][]audit.Event{nodeID: chain(nodeID, 3)}
			output := func(format string) string {
				require.Zero(t, h.run(append(strings.Fields(command), "-o", format)...), h.err.String())
				require.NotEmpty(t, h.out.String())
				return h.out.String()
			}
			document := output("json")
			fromYAML, err := yaml.YAMLToJSON([]byte(output("yaml")))
			require.NoError(t, err)
			require.JSONEq(t, document, string(fromYAML))
			require.JSONEq(t, document, output("jsonpath=$"))
			switch table := output("table"); command {
			case "config get-contexts", "sku list", "provider list": // they have no more columns
				require.Equal(t, schema.ExitUsage, h.run(append(strings.Fields(command), "-o", "wide")...))
			case "node list", "op list", "stuck", "task list --all", "audit", "node history gpu-17", "instance list":
				require.Greater(t, len(output("wide")), len(table))
			default:
				require.Equal(t, table, output("wide"))
			}
			for line := range strings.Lines(output("name")) {
				require.Len(t, strings.Fields(line), 1, "a name is one word")
			}
		})
	}
}

// TestErrorFormats: a failure is the error envelope on stdout when the output is for
// programs, whatever failed.
func TestErrorFormats(t *testing.T) {
	t.Parallel()
	for command, exit := range map[string]int{
		"node show gpu-99": schema.ExitNotFound, "op show gpu-17": schema.ExitNotFound, "task show " + taskID: schema.ExitNotFound,
		"audit --node gpu-99": schema.ExitNotFound, "node list --state foo": schema.ExitUsage, "node drian": schema.ExitUsage,
		"node list --direct": schema.ExitUsage, "config use-context none": schema.ExitUsage,
	} {
		for _, format := range []string{"json", "yaml"} {
			h := setup(t)
			require.Equal(t, exit, h.run(append(strings.Fields(command), "-o", format)...), command)
			text, err := yaml.YAMLToJSON(h.out.Bytes())
			require.NoError(t, err)
			var envelope schema.ErrorBody
			require.NoError(t, json.Unmarshal(text, &envelope))
			require.NotEmpty(t, envelope.Error.Code, command)
			require.NotEmpty(t, envelope.Error.Message, command)
		}
	}
}

// TestListOfASummary: the formats for programs have the fields that the API sent and no
// others.
func TestListOfASummary(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const sent = `{"id":"0198f000-0000-7000-8000-000000000017","host":"gpu-17","state":"active","new_field":"<1>"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"nodes":[`+sent+`]}`)
	}))
	t.Cleanup(server.Close)
	list := func(format string) string {
		require.Zero(t, h.run("node", "list", "--api-url", server.URL, "-o", format), h.err.String())
		return h.out.String()
	}
	require.JSONEq(t, `{"nodes":[`+sent+`]}`, list("json"))
	require.JSONEq(t, sent, list("jsonpath=.nodes[0]"))
	require.Contains(t, list("yaml"), "new_field: <1>")
	require.NotContains(t, list("yaml"), "workloads")
	require.Contains(t, list("table"), "gpu-17  active")
}
