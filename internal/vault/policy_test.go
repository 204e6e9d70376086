package vault

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

// TestPolicies makes each call with each role's token. Allowed calls succeed; Vault
// denies all others with 403.
func TestPolicies(t *testing.T) {
	b := prepared(t)
	csr := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)).Raw}))
	uri := nodeIdentity().URI()
	document := func(payloadType string) string {
		return base64.StdEncoding.EncodeToString(dsse.PAE(payloadType, []byte("{}")))
	}
	removal, checkpoint := document(trust.RemovalPayloadType), document(audit.CheckpointPayloadType)
	task, lease, set := document(task.PayloadType), document(trust.LeaseKeyPayloadType), document(trust.VerifierSetPayloadType)
	type with = map[string]any
	const worker, apiOnly, both, none = "worker", "api", "worker api", ""
	table := []struct {
		name string
		may  string
		r    request
	}{
		{"sign a task", worker, put("transit/sign/task-test", with{"input": task, "key_version": 1})},
		{"sign a removal", worker, put("transit/sign/task-test", with{"input": removal, "key_version": 1})},
		{"sign a removal with the root", none, put("transit/sign/set-root-test", with{"input": removal, "key_version": 1})},
		{"sign a lease key", apiOnly, put("transit/sign/task-test", with{"input": lease, "key_version": 1})},
		{"sign an audit checkpoint", worker, put("transit/sign/audit-test", with{"input": checkpoint, "key_version": 1})},
		{"sign an audit checkpoint with the task key", none, put("transit/sign/task-test", with{"input": checkpoint, "key_version": 1})},
		{"sign a task with the checkpoint key", none, put("transit/sign/audit-test", with{"input": task, "key_version": 1})},
		{"read the checkpoint key", both, get("transit/keys/audit-test")},
		{"rotate the checkpoint key", none, put("transit/keys/audit-test/rotate", nil)},
		{"sign a set with the task key", none, put("transit/sign/task-test", with{"input": set, "key_version": 1})},
		{"sign a set with the root", none, put("transit/sign/set-root-test", with{"input": set, "key_version": 1})},
		{"sign a task with the root", none, put("transit/sign/set-root-test", with{"input": task, "key_version": 1})},
		{"sign what is no document", none, put("transit/sign/task-test", with{"input": base64.StdEncoding.EncodeToString([]byte("x")), "key_version": 1})},
		{"sign a set behind a line break", none, put("transit/sign/task-test", with{"input": "\n" + set, "key_version": 1})},
		{"sign a set behind a comma", none, put("transit/sign/task-test", with{"input": "," + set, "key_version": 1})},
		{"sign a set in a list", none, put("transit/sign/task-test", with{"input": []string{set}, "key_version": 1})},
		{"sign a batch", none, put("transit/sign/task-test", with{"batch_input": []with{{"input": set}}, "key_version": 1})},
		{"sign a task and a batch", none, put("transit/sign/task-test", with{"input": task, "key_version": 1, "batch_input": []with{{"input": set}}})},
		{"sign without a version", none, put("transit/sign/task-test", with{"input": task})},
		{"sign a hash", none, put("transit/sign/task-test", with{"input": task, "key_version": 1, "prehashed": true})},
		{"sign by the hash's path", none, put("transit/sign/task-test/sha2-512", with{"input": task, "key_version": 1})},
		{"sign with another key", none, put("transit/sign/other", with{"input": task, "key_version": 1})},
		{"read the root key", both, get("transit/keys/set-root-test")},
		{"rotate the root key", none, put("transit/keys/set-root-test/rotate", nil)},
		{"configure the root key", none, put("transit/keys/set-root-test/config", with{"deletion_allowed": true})},
		{"export the root key", none, get("transit/export/signing-key/set-root-test")},
		{"back up the root key", none, get("transit/backup/set-root-test")},
		{"read the task key", both, get("transit/keys/task-test")},
		{"read another key", none, get("transit/keys/other")},
		{"list the keys", none, list("transit/keys")},
		{"rotate the task key", none, put("transit/keys/task-test/rotate", nil)},
		{"configure the task key", none, put("transit/keys/task-test/config", with{"deletion_allowed": true})},
		{"export the task key", none, get("transit/export/signing-key/task-test")},
		{"back up the task key", none, get("transit/backup/task-test")},
		{"make a key", none, put("transit/keys/other", with{"type": "ed25519"})},

		{"sign a node's CSR", apiOnly, put("pki-node/sign/node", with{"csr": csr, "uri_sans": uri})},
		{"sign a CSR of another environment", none, put("pki-node/sign/node", with{"csr": csr, "uri_sans": "spiffe://prod/node/x/1"})},
		{"sign a CSR without a name", none, put("pki-node/sign/node", with{"csr": csr})},
		{"choose the life", none, put("pki-node/sign/node", with{"csr": csr, "uri_sans": uri, "ttl": "1h"})},
		{"choose a subject", none, put("pki-node/sign/node", with{"csr": csr, "uri_sans": uri, "common_name": "x"})},
		{"choose another issuer", none, put("pki-node/issuer/g1/sign/node", with{"csr": csr, "uri_sans": uri})},
		{"have a node key made", none, put("pki-node/issue/node", with{"uri_sans": uri})},
		{"sign a node's CSR verbatim", none, put("pki-node/sign-verbatim", with{"csr": csr})},
		{"sign verbatim by role", none, put("pki-node/sign-verbatim/node", with{"csr": csr})},
		{"sign an intermediate", none, put("pki-node/root/sign-intermediate", with{"csr": csr})},
		{"sign with another role", none, put("pki-node/sign/other", with{"csr": csr, "uri_sans": uri})},
		{"make a role", none, put("pki-node/roles/other", with{"allow_any_name": true})},
		{"change the role", none, put("pki-node/roles/node", with{"allow_any_name": true})},
		{"make a CA", none, put("pki-node/root/generate/exported", with{"common_name": "x"})},
		{"change an issuer", none, put("pki-node/issuer/g1", with{"issuer_name": "x"})},
		{"choose the default issuer", none, put("pki-node/config/issuers", with{"default": "g1"})},
		{"read a node issuer", apiOnly, get("pki-node/issuer/g1")},

		{"sign the server's CSR", apiOnly, put("pki-api/sign/api", with{"csr": csr, "alt_names": "api.test,localhost", "ip_sans": "127.0.0.1,::1"})},
		{"sign for another name", none, put("pki-api/sign/api", with{"csr": csr, "alt_names": "other.test"})},
		{"sign for another address", none, put("pki-api/sign/api", with{"csr": csr, "ip_sans": "10.0.0.1"})},
		{"have a server key made", none, put("pki-api/issue/api", with{"alt_names": "api.test"})},
		{"read the server role", apiOnly, get("pki-api/roles/api")},
		{"change the server role", none, put("pki-api/roles/api", with{"allow_any_name": true})},
		{"read an API issuer", both, get("pki-api/issuer/g1")},
		{"make another API CA", none, put("pki-api/root/generate/internal", with{"common_name": "x"})},

		{"read the credential of MAAS", worker, get("kv-providers/data/maas")},
		{"read the credential of another provider", none, get("kv-providers/data/other")},
		{"change the credential of MAAS", none, put("kv-providers/data/maas", with{"data": with{"api_key": "x"}})},
		{"read the versions of the credential", none, get("kv-providers/metadata/maas")},
		{"delete the credential", none, put("kv-providers/delete/maas", with{"versions": []int{1}})},
		{"list the credentials", none, list("kv-providers/metadata")},

		{"look at itself", both, get("auth/token/lookup-self")},
		{"renew itself", both, put("auth/token/renew-self", nil)},
		{"make a token", none, put("auth/token/create", nil)},
		{"read the worker's role id", none, get("auth/approle/role/gpuaas-worker/role-id")},
		{"make a worker secret id", none, put("auth/approle/role/gpuaas-worker/secret-id", nil)},
		{"make an API secret id", none, put("auth/approle/role/gpuaas-api/secret-id", nil)},
		{"change the API's policy", none, put("sys/policies/acl/gpuaas-api", with{"policy": `path "*" { capabilities = ["sudo"] }`})},
		{"list the mounts", none, get("sys/mounts")},
		{"seal", none, put("sys/seal", nil)},
		{"use a cubbyhole", none, put("cubbyhole/x", with{"a": "b"})},
	}
	b.storeCredential(t, with{"api_key": "a:b:c"})
	for _, role := range []string{worker, apiOnly} {
		c := b.login(t, role)
		for _, row := range table {
			t.Run(role+"/"+row.name, func(t *testing.T) {
				_, err := c.send(t.Context(), row.r)
				if row.may == role || row.may == both {
					require.NoError(t, err)
					return
				}
				answer, ok := errors.AsType[*api.ResponseError](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, http.StatusForbidden, answer.StatusCode)
			})
		}
	}
}

// The policy for signing verifier sets allows only that.
func TestVerifierSetPolicy(t *testing.T) {
	b := prepared(t)
	token, err := b.Root(t).Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{"gpuaas-sets"}, NoDefaultPolicy: true})
	require.NoError(t, err)
	admin := b.install.AdminConfig
	admin.TokenFile = filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(admin.TokenFile, []byte(token.Auth.ClientToken), 0o600))
	s, err := NewAdmin(admin)
	require.NoError(t, err)
	_, due, err := s.Renewal(t.Context(), b.set, time.Now().Add(VerifierSetLifetime))
	require.NoError(t, err)
	require.True(t, due)
	document := base64.StdEncoding.EncodeToString(dsse.PAE(task.PayloadType, []byte("{}")))
	for _, name := range []string{"task-test", "set-root-test"} {
		_, err = s.send(t.Context(), put("transit/sign/"+name, map[string]any{"input": document, "key_version": 1}))
		require.True(t, isDenied(err), "%s: %v", name, err)
	}
}

// A denial by the policy does not trigger a login.
func TestPolicyDenialDoesNotLogInAgain(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	_, err := c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	requireKind(t, err, schema.KindServiceUnavailable, ReasonDenied)
	require.Equal(t, 1, b.calls.of("login"))
}
