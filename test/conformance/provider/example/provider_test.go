package example_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
	"github.com/gpuaas/gpuaas/test/conformance/provider/example"
	"github.com/gpuaas/gpuaas/test/testkit/providertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	provider.Run(t, func(t *testing.T) provider.Target {
		t.Helper()
		cloud := providertest.NewCloud(t)
		key := schema.NewSecret(providertest.Secret)
		return provider.Target{
			Provider: example.New(cloud.URL, key).Provider, Second: example.New(cloud.URL, key).Provider,
			Info: example.Info(), Spec: spec, Faults: cloud.Faults, Outside: providertest.Outside{Site: cloud.Site},
			Secrets: []string{providertest.Secret}, Wait: 10 * time.Second,
		}
	})
}

func spec() machine.Spec {
	id := schema.NewID()
	return machine.Spec{InstanceID: id, NodeID: schema.NewID(), Host: "gpu-" + id[24:], Options: machine.Options{Region: "east", Type: "a1", Image: "gpu-node"}}
}

// TestUnreachable checks that a request that did not reach the cloud had no effect.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	err := example.New("http://127.0.0.1:1", schema.NewSecret("key")).Provider.Delete(t.Context(), machine.Ref{InstanceID: "i-1"})
	require.True(t, machine.Is(err, machine.ReasonUnavailable), "%v", err)
}

// TestHowto checks that the guide shows the provider and its test.
func TestHowto(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../../docs/howto/add-a-provider.md")
	require.NoError(t, err)
	code, err := os.ReadFile("provider.go")
	require.NoError(t, err)
	require.Contains(t, string(guide), "```go\n"+string(code)+"```\n", "docs/howto/add-a-provider.md does not show provider.go as it is")
	require.LessOrEqual(t, strings.Count(string(code), "\n"), 160, "the example is no longer short")
}
