package uninstall

import (
	"io"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
	"github.com/gpuaas/gpuaas/worker"
)

// page has the commands. namespace is that of its examples.
const (
	page      = "../../docs/uninstall.md"
	namespace = "gpuaas"
)

// site is a Postgres, a Vault and a Temporal.
type site struct {
	t        *testing.T
	server   *url.URL // of Postgres, with the database postgres
	vault    *vaulttest.Server
	temporal string
	bin      string
}

// TestUninstall types the blocks of docs/uninstall.md that name it. The servers are then as before the setup.
func TestUninstall(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Postgres, a Vault and a Temporal")
	}
	need.Program(t, "dropdb", "install the client programs of Postgres")
	s := newSite(t)
	databases, secrets := s.postgres(), s.secrets()
	s.setup()
	require.NotEqual(t, databases, s.postgres())
	require.NotEqual(t, secrets, s.secrets())
	schedules, attributes := s.schedules()
	require.NotEmpty(t, schedules)
	require.NotEmpty(t, attributes)

	blocks := typed(t)
	require.Len(t, blocks, 5, "the namespace, its parts, Vault, its login method, and Postgres")
	s.run(blocks[1])
	schedules, attributes = s.schedules()
	require.Empty(t, schedules)
	require.Empty(t, attributes)
	for _, block := range []string{blocks[0], blocks[2], blocks[3], blocks[4]} {
		s.run(block)
	}
	require.Equal(t, databases, s.postgres())
	require.Equal(t, secrets, s.secrets())
	harness.Eventually(t, "the namespace is deleted", func() bool {
		_, err := s.dial().WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
		return err != nil
	})
}

func newSite(t *testing.T) *site {
	t.Helper()
	server, err := url.Parse(pgtest.Empty(t))
	require.NoError(t, err)
	server.Path = "/postgres"
	s := &site{t: t, server: server, bin: programs(t)}
	var v vaulttest.Shared
	t.Cleanup(v.Close)
	s.vault, s.temporal = v.Get(t), temporaltest.Own(t)
	return s
}

// setup installs gpuaas as docs/install.md does, with the owner of the database, the logins of the programs and
// the policy of setup's token.
func (s *site) setup() {
	s.t.Helper()
	s.sql("CREATE ROLE gpuaas_owner LOGIN")
	for _, role := range []string{"gpuaas_worker", "gpuaas_api_admin", "gpuaas_api_node"} {
		s.sql("CREATE ROLE " + role)
		s.sql("CREATE ROLE " + role + "_a LOGIN IN ROLE " + role)
	}
	s.sql("CREATE DATABASE gpuaas OWNER gpuaas_owner")
	require.NoError(s.t, s.admin().Sys().PutPolicy("gpuaas-setup", `path "sys/mounts" { capabilities = ["read"] }`))
	database := *s.server
	database.Path, database.User = "/gpuaas", url.User("gpuaas_owner")
	vars := map[string]string{"GPUAAS_DATABASE_URL": database.String(), "VAULT_ADDR": s.vault.Address, "GPUAAS_VAULT_TOKEN_FILE": s.vault.TokenFile,
		"GPUAAS_SETUP_OUT_DIR": s.t.TempDir(), "GPUAAS_ENV": "prod", "TEMPORAL_ADDRESS": s.temporal}
	require.NoError(s.t, worker.Setup(s.t.Context(), worker.SetupOptions{Temporal: temporal.Config{Address: s.temporal, Namespace: namespace},
		Getenv: func(name string) string { return vars[name] }, Progress: io.Discard}))
}

// admin is a client of Vault with the root token.
func (s *site) admin() *api.Client {
	s.t.Helper()
	c, err := api.NewClient(&api.Config{Address: s.vault.Address})
	require.NoError(s.t, err)
	c.SetToken(s.vault.RootToken)
	return c
}

// typed are the blocks of the page that this test types.
func typed(t *testing.T) (blocks []string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)<!-- tested: TestUninstall -->\n```\n(.*?)\n```").FindAllStringSubmatch(string(raw), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// run types a block, as an administrator of the three servers.
func (s *site) run(block string) {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), "sh", "-ec", block)
	c.Env = append(os.Environ(), "PATH="+s.bin+":"+os.Getenv("PATH"), "PGHOST="+s.server.Hostname(), "PGPORT="+s.server.Port(),
		"PGUSER="+s.server.User.Username(), "VAULT_ADDR="+s.vault.Address, "VAULT_TOKEN="+s.vault.RootToken, "TEMPORAL_ADDRESS="+s.temporal)
	out, err := c.CombinedOutput()
	require.NoError(s.t, err, "%s\n%s", block, out)
}

func (s *site) sql(statement string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.server.String())
	require.NoError(s.t, err)
	defer conn.Close(s.t.Context())
	_, err = conn.Exec(s.t.Context(), statement)
	require.NoError(s.t, err)
}

// postgres are the databases and roles of the server.
func (s *site) postgres() []string {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.server.String())
	require.NoError(s.t, err)
	defer conn.Close(s.t.Context())
	rows, err := conn.Query(s.t.Context(), "SELECT 'database ' || datname FROM pg_database UNION SELECT 'role ' || rolname FROM pg_roles ORDER BY 1")
	require.NoError(s.t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	return names
}

// secrets are the mounts, login methods, policies and AppRoles of Vault.
func (s *site) secrets() (names []string) {
	s.t.Helper()
	c := s.admin()
	mounts, err := c.Sys().ListMounts()
	require.NoError(s.t, err)
	for path := range mounts {
		names = append(names, "mount "+path)
	}
	methods, err := c.Sys().ListAuth()
	require.NoError(s.t, err)
	for path := range methods {
		names = append(names, "login method "+path)
	}
	policies, err := c.Sys().ListPolicies()
	require.NoError(s.t, err)
	for _, policy := range policies {
		names = append(names, "policy "+policy)
	}
	if roles, err := c.Logical().List("auth/approle/role"); err == nil && roles != nil { // an error without the login method
		for _, role := range roles.Data["keys"].([]any) {
			names = append(names, "role "+role.(string))
		}
	}
	slices.Sort(names)
	return names
}

func (s *site) dial() client.Client {
	s.t.Helper()
	c, err := client.Dial(client.Options{HostPort: s.temporal, Namespace: namespace})
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// schedules are the schedules of the namespace, and its search attributes that are not those of Temporal
// itself.
func (s *site) schedules() (schedules, attributes []string) {
	s.t.Helper()
	c := s.dial()
	harness.Eventually(s.t, "the schedules are listed", func() bool {
		schedules = nil
		list, err := c.ScheduleClient().List(s.t.Context(), client.ScheduleListOptions{})
		require.NoError(s.t, err)
		for list.HasNext() {
			entry, err := list.Next()
			require.NoError(s.t, err)
			schedules = append(schedules, entry.ID)
		}
		return len(schedules) == 0 || len(schedules) == len(lifecycle.Schedules())
	})
	answer, err := c.OperatorService().ListSearchAttributes(s.t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	require.NoError(s.t, err)
	for name := range answer.GetCustomAttributes() {
		if !strings.HasPrefix(name, "Custom") { // those of each namespace of a development server
			attributes = append(attributes, name)
		}
	}
	return schedules, attributes
}
