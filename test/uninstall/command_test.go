package uninstall

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/client"
)

// commandVar is the variable that makes this program stand for vault or temporal.
const commandVar = "GPUAAS_TEST_COMMAND"

// programs writes programs named vault and temporal into a folder. They make the calls of the programs of
// these names, which a machine for tests may lack.
func programs(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"vault", "temporal"} {
		script := "#!/bin/sh\n" + commandVar + "=" + name + " exec " + os.Args[0] + " -test.run='^TestCommand$' -- \"$@\"\n"
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(script), 0o700))
	}
	return folder
}

// TestCommand is one run of vault or temporal.
func TestCommand(t *testing.T) {
	name := os.Getenv(commandVar)
	if name == "" {
		return
	}
	line := name + " " + strings.Join(flag.Args(), " ")
	for pattern, call := range map[string]func(ctx context.Context, a string) error{
		`^vault secrets disable (\S+)$`: func(_ context.Context, mount string) error { return vaultClient(t).Sys().Unmount(mount) },
		`^vault policy delete (\S+)$`:   func(_ context.Context, policy string) error { return vaultClient(t).Sys().DeletePolicy(policy) },
		`^vault auth disable (\S+)$`:    func(_ context.Context, method string) error { return vaultClient(t).Sys().DisableAuth(method) },
		`^vault delete (\S+)$`: func(_ context.Context, path string) error {
			_, err := vaultClient(t).Logical().Delete(path)
			return err
		},
		`^temporal schedule delete --namespace=gpuaas --schedule-id (\S+)$`: func(ctx context.Context, id string) error {
			return temporalClient(t).ScheduleClient().GetHandle(ctx, id).Delete(ctx)
		},
		`^temporal operator search-attribute remove --namespace=gpuaas --name (\S+) --yes$`: func(ctx context.Context, name string) error {
			_, err := temporalClient(t).OperatorService().RemoveSearchAttributes(ctx, &operatorservice.RemoveSearchAttributesRequest{Namespace: namespace, SearchAttributes: []string{name}})
			return err
		},
		`^temporal operator namespace delete --namespace=(gpuaas)$`: func(ctx context.Context, name string) error {
			_, err := temporalClient(t).OperatorService().DeleteNamespace(ctx, &operatorservice.DeleteNamespaceRequest{Namespace: name})
			return err
		},
	} {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(line); m != nil {
			require.NoError(t, call(t.Context(), m[1]), line)
			return
		}
	}
	require.FailNow(t, "the page has a command that this test does not have", line)
}

// vaultClient has the address and the token of the environment.
func vaultClient(t *testing.T) *api.Client {
	t.Helper()
	c, err := api.NewClient(nil)
	require.NoError(t, err)
	return c
}

func temporalClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: os.Getenv("TEMPORAL_ADDRESS"), Namespace: namespace})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}
