package trust_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A statement binds every field: a signature over one is not valid for another. The
// payload type of a result binds its task.
func TestStatementsBindEveryField(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	statements := [][]byte{
		trust.EnrollStatement("n", "t", "c", key),
		trust.EnrollStatement("m", "t", "c", key),
		trust.EnrollStatement("n", "u", "c", key),
		trust.EnrollStatement("n", "t", "d", key),
		trust.EnrollStatement("n", "t", "c", testKey(t)),
		trust.RecoverStatement("n", 1, 2, "t", "c"),
		trust.RecoverStatement("m", 1, 2, "t", "c"),
		trust.RecoverStatement("n", 2, 2, "t", "c"),
		trust.RecoverStatement("n", 1, 1, "t", "c"),
		trust.RecoverStatement("n", 1, 2, "u", "c"),
		trust.RecoverStatement("n", 1, 2, "t", "d"),
		[]byte(trust.ResultPayloadType("n")),
		[]byte(trust.ResultPayloadType("m")),
	}
	seen := map[string]bool{}
	for _, s := range statements {
		require.False(t, seen[string(s)], "%s", s)
		seen[string(s)] = true
	}
}

func TestCheckStatement(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	good := base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte("s")))
	require.True(t, trust.CheckStatement(public, []byte("s"), good))
	require.False(t, trust.CheckStatement(public, []byte("x"), good))
	require.False(t, trust.CheckStatement(testKey(t), []byte("s"), good))
	require.False(t, trust.CheckStatement(nil, []byte("s"), good), "a key of no bytes")
	require.False(t, trust.CheckStatement(public, []byte("s"), ""))
	require.False(t, trust.CheckStatement(public, []byte("s"), "!"+good[1:]))
}

func TestParseRecoveryKey(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	text := base64.StdEncoding.EncodeToString(key)
	got, err := trust.ParseRecoveryKey(text)
	require.NoError(t, err)
	require.Equal(t, key, got)
	for _, bad := range []string{"", text[:40], text + text, "!" + text[1:], strings.TrimSuffix(text, "=")} {
		_, err := trust.ParseRecoveryKey(bad)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), bad)
		require.Equal(t, "recovery_key", schema.AsError(err).Reason)
	}
}

func TestEnvelopeDigest(t *testing.T) {
	t.Parallel()
	envelope, err := json.Marshal(map[string]any{"payload": []byte("body"), "payloadType": "x"})
	require.NoError(t, err)
	got, err := trust.EnvelopeDigest(envelope)
	require.NoError(t, err)
	require.Equal(t, schema.SHA256Hex([]byte("body")), got)
	_, err = trust.EnvelopeDigest([]byte(`{"payload":"%"}`))
	require.Equal(t, schema.KindInternal, schema.KindOf(err))
}

func TestRoles(t *testing.T) {
	t.Parallel()
	const viewer, operator, admin, bootstrapper, reporter = trust.RoleViewer, trust.RoleOperator, trust.RoleAdmin, trust.RoleBootstrapper, trust.RoleReporter
	require.ElementsMatch(t, []trust.Role{viewer, operator, admin, bootstrapper, reporter}, trust.Roles())
	for have, allowed := range map[trust.Role][]trust.Role{
		viewer: {viewer}, operator: {viewer, operator, bootstrapper, reporter}, admin: {viewer, operator, admin, bootstrapper, reporter},
		bootstrapper: {bootstrapper}, reporter: {reporter}, "": nil, "root": nil,
	} {
		var got []trust.Role
		for _, need := range []trust.Role{viewer, operator, admin, bootstrapper, reporter} {
			if have.Allows(need) {
				got = append(got, need)
			}
		}
		require.Equal(t, allowed, got, have)
	}
	require.False(t, trust.Role("root").Allows("root"), "a role that does not exist")
	require.True(t, trust.ValidSubject("ci@example.com"))
	require.False(t, trust.ValidSubject("a b"))
	require.False(t, trust.ValidSubject(strings.Repeat("a", 65)))
}

func TestEnvFiles(t *testing.T) {
	t.Parallel()
	b := trust.BootstrapBundle{NodeID: "n", EnrollmentToken: "t", APIURL: "https://x", TaskSigningPubkeys: "k", CABundlePath: "/a",
		NodeCertCABundlePath: "/b", CertPath: "/c", KeyPath: "/d", Env: "dev", CABundlePEM: "pem", ExpiresAt: "later"}
	require.Equal(t, `GPUAAS_API_URL="https://x"
GPUAAS_CA_BUNDLE_PATH="/a"
GPUAAS_CERT_PATH="/c"
GPUAAS_ENROLLMENT_TOKEN="t"
GPUAAS_ENV="dev"
GPUAAS_KEY_PATH="/d"
GPUAAS_NODE_CERT_CA_BUNDLE_PATH="/b"
GPUAAS_NODE_ID="n"
GPUAAS_TASK_SIGNING_PUBKEYS="k"
`, b.EnvFile())
	var none *trust.AgentPackage
	require.Empty(t, none.EnvFile())
	require.Equal(t, `GPUAAS_NODE_AGENT_ENV_FILE="/e"
GPUAAS_NODE_AGENT_INSTALL_ROOT="/r"
GPUAAS_NODE_AGENT_SYSTEMD_UNIT="u"
`, (&trust.AgentPackage{InstallRoot: "/r", EnvFilePath: "/e", SystemdUnitName: "u", PullToken: "secret"}).EnvFile())
	require.Empty(t, trust.Fingerprint("no certificate"))
}
