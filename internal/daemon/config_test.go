package daemon

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

type testConfig struct {
	Common
	Engines
	Rate  float64       `env:"TEST_RATE" envDefault:"1.5" help:"Rate per second."`
	Token schema.Secret `env:"TEST_TOKEN,required" example:"x" help:"Token."`
	Names []string      `env:"TEST_NAMES" envDefault:"a,b" help:"Names."`
	Note  string        `env:"TEST_NOTE" help:"Note."`
	Count int           `env:"TEST_COUNT" help:"Count."`

	Hosts map[string]string `env:"TEST_HOSTS" example:"a.test:10.0.2.2" help:"Hosts."`
}

func (c *testConfig) Check(f *Faults) {
	c.Engines.Check(f)
	f.Check(c.Rate < 0, "TEST_RATE must not be negative")
}

func newConfig() *testConfig {
	return &testConfig{Common: Common{MetricsAddr: "127.0.0.1:0", DrainTimeout: time.Second}}
}

func environ(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// complete is an environment with every required variable.
func complete(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"GPUAAS_DATABASE_URL": "postgres://u:p@h/db?sslmode=require", "VAULT_ADDR": "https://v", "GPUAAS_ENV": "test",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": file(t, "login\n"), "TEST_TOKEN_FILE": file(t, "of the file\n")}
}

func TestLoadDefaultsAndSecrets(t *testing.T) {
	t.Parallel()
	c := newConfig()
	require.NoError(t, Load(c, environ(complete(t))))
	require.Equal(t, Common{MetricsAddr: "127.0.0.1:0", LogLevel: slog.LevelInfo, DrainTimeout: time.Second, ProbeEvery: 5 * time.Second}, c.Common)
	require.InDelta(t, 1.5, c.Rate, 0)
	require.Equal(t, []string{"a", "b"}, c.Names)
	require.Equal(t, "test", c.Env)
	require.Equal(t, "of the file", c.Token.Reveal())
	require.Equal(t, []schema.Secret{schema.NewSecret("p"), schema.NewSecret("login")}, c.Secrets())
}

func TestLoadOverridesDefaults(t *testing.T) {
	t.Parallel()
	vars := complete(t)
	maps.Copy(vars, map[string]string{"TEST_TOKEN": "of the variable", "TEST_RATE": "7", "GPUAAS_LOG_LEVEL": "debug",
		"GPUAAS_METRICS_ADDR": ":1", "GPUAAS_LAME_DUCK": "3s", "GPUAAS_DRAIN_TIMEOUT": "1m", "GPUAAS_HEALTH_INTERVAL": "1s", "TEST_NAMES": "x"})
	c := newConfig()
	require.NoError(t, Load(c, environ(vars)))
	require.Equal(t, Common{MetricsAddr: ":1", LogLevel: slog.LevelDebug, LameDuck: 3 * time.Second, DrainTimeout: time.Minute, ProbeEvery: time.Second}, c.Common)
	require.Equal(t, "of the variable", c.Token.Reveal(), "the variable wins over its file")
	require.InDelta(t, 7, c.Rate, 0)
	require.Equal(t, []string{"x"}, c.Names)
}

func TestLoadReportsEveryFaultAndNoSecret(t *testing.T) {
	t.Parallel()
	err := Load(newConfig(), environ(map[string]string{"GPUAAS_DATABASE_URL_FILE": "/nowhere", "TEST_TOKEN_FILE": file(t, " \n"),
		"GPUAAS_LOG_LEVEL": "loud", "TEST_RATE": "-1", "GPUAAS_ENV": "Prod/EU", "GPUAAS_LAME_DUCK": "soon",
		"GPUAAS_METRICS_ADDR": "9090", "TEST_NOTE": "hunter2", "GPUAAS_DRAIN_TIMEOUT": "-1s"}))
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	for _, fault := range []string{"GPUAAS_DATABASE_URL_FILE: open /nowhere", "TEST_TOKEN_FILE: the file is empty", "GPUAAS_LOG_LEVEL must be debug, info, warn or error",
		"GPUAAS_VAULT_ROLE_ID_FILE and GPUAAS_VAULT_SECRET_ID_FILE must be set, or GPUAAS_VAULT_KUBERNETES_ROLE",
		"VAULT_ADDR is not set, for example VAULT_ADDR=https://", "TEST_RATE must not",
		"GPUAAS_ENV must be", "GPUAAS_LAME_DUCK must be a duration, for example 30s", "GPUAAS_METRICS_ADDR must be host:port", "GPUAAS_DRAIN_TIMEOUT must be positive"} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "GPUAAS_DATABASE_URL or", "one fault per setting")
	require.NotContains(t, err.Error(), "hunter2")
	vars := complete(t)
	maps.Copy(vars, map[string]string{"GPUAAS_DATABASE_URL": "host=db password=hunter2", "VAULT_ADDR": "vault:8200"})
	err = Load(newConfig(), environ(vars))
	require.ErrorContains(t, err, "GPUAAS_DATABASE_URL must be a URL, for example postgres://")
	require.ErrorContains(t, err, "VAULT_ADDR must be a URL, for example https://")
	require.NotContains(t, err.Error(), "hunter2")
	for _, fault := range []string{"TEST_TOKEN or TEST_TOKEN_FILE is not set", "GPUAAS_ENV is not set"} {
		require.ErrorContains(t, Load(newConfig(), environ(nil)), fault)
	}
}

// A fault of a value has the variable, the wrong part and the form.
func TestLoadNamesTheWrongPart(t *testing.T) {
	t.Parallel()
	for fault, vars := range map[string]map[string]string{
		`TEST_HOSTS must be pairs NAME:VALUE separated by commas, for example a.test:10.0.2.2, not "b.test"`: {"TEST_HOSTS": "a.test:10.0.2.2,b.test"},
		`TEST_HOSTS must be pairs NAME:VALUE separated by commas, for example a.test:10.0.2.2, not ""`:       {"TEST_HOSTS": "a.test:10.0.2.2,"},
		`TEST_COUNT must be a whole number, for example 1, not "many?[2J"`:                                   {"TEST_COUNT": "many\x1b[2J"},
		`TEST_RATE must be a number, for example 1.5, not "fast"`:                                            {"TEST_RATE": "fast"},
		`GPUAAS_LAME_DUCK must be a duration, for example 30s, not "soon"`:                                   {"GPUAAS_LAME_DUCK": "soon"},
		`GPUAAS_ALLOW_PLAINTEXT must be true or false, not "maybe"`:                                          {"GPUAAS_ALLOW_PLAINTEXT": "maybe"},
	} {
		all := complete(t)
		maps.Copy(all, vars)
		require.ErrorContains(t, Load(newConfig(), environ(all)), fault)
	}
	all := complete(t)
	all["TEST_HOSTS"], all["TEST_COUNT"] = "a:fd00::1,b:10.0.0.1", "7"
	c := newConfig()
	require.NoError(t, Load(c, environ(all)))
	require.Equal(t, map[string]string{"a": "fd00::1", "b": "10.0.0.1"}, c.Hosts)
	all["TEST_COUNT"] = strings.Repeat("9", 1000)
	require.Less(t, len(Load(newConfig(), environ(all)).Error()), 200)
}

// A login with a service account replaces the AppRole, and its token is a secret, too.
func TestLoginWithAServiceAccount(t *testing.T) {
	t.Parallel()
	vars := complete(t)
	vars["GPUAAS_VAULT_KUBERNETES_ROLE"], vars["GPUAAS_VAULT_KUBERNETES_TOKEN_FILE"] = "gpuaas-api", file(t, "token\n")
	require.ErrorContains(t, Load(newConfig(), environ(vars)), "GPUAAS_VAULT_KUBERNETES_ROLE excludes GPUAAS_VAULT_ROLE_ID_FILE and GPUAAS_VAULT_SECRET_ID_FILE")
	delete(vars, "GPUAAS_VAULT_ROLE_ID_FILE")
	delete(vars, "GPUAAS_VAULT_SECRET_ID_FILE")
	c := newConfig()
	require.NoError(t, Load(c, environ(vars)))
	require.Equal(t, "kubernetes", c.KubeMount)
	require.Equal(t, []schema.Secret{schema.NewSecret("p"), schema.NewSecret("token")}, c.Secrets())
}

func TestSecretsOfAnURLWithoutPassword(t *testing.T) {
	t.Parallel()
	require.Empty(t, Engines{DatabaseURL: schema.NewSecret("postgres://h/db"), SecretIDFile: "/nowhere"}.Secrets())
}

func testProgram(c *testConfig, start func(ctx context.Context, p *Process) error) Program {
	return Program{Name: "gpuaas-test", About: "gpuaas-test does nothing.", Config: c, Start: start,
		Flags: func(f *flag.FlagSet) { f.String("serve", "all", "what to serve") }}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
	}{
		{[]string{"--help"}, 0, "GPUAAS_DATABASE_URL, GPUAAS_DATABASE_URL_FILE (required)\n      Postgres connection URL.", ""},
		{[]string{"-h"}, 0, "--serve\n      what to serve (default all)", ""},
		{[]string{"version"}, 0, "gpuaas-test " + version.Read().String() + "\n", ""},
		{[]string{"--version"}, 0, "gpuaas-test " + version.Read().String() + "\n", ""},
		{[]string{"run"}, 2, "", `unknown argument "run"`},
		{[]string{"--loud"}, 2, "", "--help"},
		{nil, 2, "", "VAULT_ADDR is not set"},
	} {
		var out, errOut bytes.Buffer
		require.Equal(t, c.code, Main(t.Context(), testProgram(newConfig(), nil), c.args, environ(nil), &out, &errOut), c.args)
		require.Contains(t, out.String(), c.out)
		require.Contains(t, errOut.String(), c.errOut)
	}
}

func TestReferenceListsEverySetting(t *testing.T) {
	t.Parallel()
	page := testProgram(newConfig(), nil).Reference()
	for _, row := range []string{
		"| `GPUAAS_DATABASE_URL`, `GPUAAS_DATABASE_URL_FILE` | required | Postgres connection URL. |",
		"| `TEST_RATE` | `1.5` | Rate per second. |", "| `TEST_NOTE` | none | Note. |", "| `GPUAAS_LAME_DUCK` | `0s` | ",
		"| `GPUAAS_METRICS_ADDR` | `127.0.0.1:0` | ", "| `TEMPORAL_NAMESPACE` | `gpuaas` | ", "| `--serve` | what to serve (default all) |",
	} {
		require.Contains(t, page, row)
	}
}
