package vault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// seconds formats a duration for Vault.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d.Seconds())) }

// nodeCA creates the node CA and the only role that signs with it.
func (s setup) nodeCA(ctx context.Context) error {
	if err := s.ca(ctx, nodeMount, nodeCAName(s.env, 1)); err != nil {
		return err
	}
	return s.role(ctx, nodeMount, nodeRole, nodeCertTTL, map[string]any{
		"client_flag": true, "ext_key_usage": "ClientAuth", "allowed_uri_sans": nodeURIs(s.env),
	})
}

// apiCA creates the CA of the API's server certificate. It is separate from the
// node CA, so that a rotation of the node CA never affects how nodes trust the API.
func (s setup) apiCA(ctx context.Context) error {
	if err := s.ca(ctx, apiMount, "gpuaas "+s.env+" API CA G1"); err != nil {
		return err
	}
	return s.role(ctx, apiMount, apiRole, serverCertTTL, map[string]any{
		"server_flag": true, "ext_key_usage": "ServerAuth", "allow_ip_sans": len(s.ips) > 0, "allow_bare_domains": true,
		// The API reads the addresses from here. The policy restricts them; a role
		// cannot.
		"allowed_domains": slices.Concat(s.dns, s.ips),
	})
}

// ca creates a PKI engine and its first issuer, a P-256 key that never leaves
// Vault and signs only leaves, unless they exist. It rejects a first generation of
// another environment. Each generation has its own subject, because a client selects
// its certificate by the issuers that a server names.
func (s setup) ca(ctx context.Context, mount, name string) error {
	if err := s.mount(ctx, "sys/mounts", mount, "pki", map[string]any{"max_lease_ttl": seconds(caTTL)}); err != nil {
		return err
	}
	issuers, err := fetch[issuerList](ctx, s, "", list(mount+"/issuers"))
	if err != nil && !errors.Is(err, errAbsent) {
		return err
	}
	var createErr error // also of a concurrent setup that was faster
	if len(issuers.Keys) == 0 {
		createErr = s.write(ctx, mount+"/root/generate/internal", "ca", map[string]any{
			"common_name": name, "issuer_name": firstIssuer, "key_name": firstIssuer, "ttl": seconds(caTTL),
		})
		if createErr == nil {
			s.log.Info("created a CA in Vault", "mount", mount, "subject", name)
		}
	}
	first, err := fetch[issuer](ctx, s, "", get(mount+"/issuer/"+firstIssuer))
	switch {
	case createErr == nil && errors.Is(err, errAbsent):
		return nil // later generations replaced it
	case err != nil:
		return cmp.Or(createErr, err)
	}
	certs, err := parseCerts(first.Certificate)
	if err != nil {
		return err
	}
	if len(certs) != 1 || certs[0].Subject.CommonName != name {
		return schema.NewError(schema.KindInvalidRequest,
			"the CA in %s of Vault at %s is not %q, so it serves another environment; use another Vault or namespace", mount, s.address, name)
	}
	return nil
}

// role writes a role and keeps the issuer that a rotation assigned to it. The
// settings that all roles share turn off everything that Vault allows by default:
// a role uses only the key of a CSR. It stores and leases nothing, so that
// renewals do not grow Vault's storage.
func (s setup) role(ctx context.Context, mount, name string, ttl time.Duration, given map[string]any) error {
	path := mount + "/roles/" + name
	there, err := fetch[struct {
		IssuerRef string `json:"issuer_ref"`
	}](ctx, s, "", get(path))
	if err != nil && !errors.Is(err, errAbsent) {
		return err
	}
	given["issuer_ref"] = cmp.Or(there.IssuerRef, firstIssuer)
	given["ttl"], given["max_ttl"], given["not_before_duration"] = seconds(ttl), seconds(ttl), seconds(backdate)
	return s.write(ctx, path, "leaf_role", given)
}

// signingKeys creates the task key, the root key of verifier sets and the key of audit
// checkpoints unless they exist, and rejects a key that could have left Vault.
func (s setup) signingKeys(ctx context.Context) error {
	if err := s.mount(ctx, "sys/mounts", transitMount, "transit", nil); err != nil {
		return err
	}
	for _, name := range []string{taskKey(s.env), rootKey(s.env), checkpointKeyName(s.env)} {
		if err := s.signingKey(ctx, transitMount+"/keys/"+name); err != nil {
			return err
		}
	}
	return nil
}

// signingKey creates a key unless it exists. Exportable and plaintext backup
// cannot be turned off again, so a key with either of them is rejected.
func (s setup) signingKey(ctx context.Context, path string) error {
	key, err := fetch[transitKey](ctx, s, "", get(path))
	if errors.Is(err, errAbsent) {
		if err := s.write(ctx, path, "signing_key", nil); err != nil {
			return err
		}
		s.log.Info("created a signing key in Vault", "key", path)
		key, err = fetch[transitKey](ctx, s, "", get(path))
	}
	if err != nil {
		return err
	}
	if key.Type != "ed25519" || key.Exportable || key.AllowPlaintextBackup {
		return schema.NewError(schema.KindInvalidRequest,
			"the key %s in Vault at %s has type %s, exportable %t, plaintext backup %t; gpuaas needs an ed25519 key that cannot leave Vault",
			path, s.address, key.Type, key.Exportable, key.AllowPlaintextBackup)
	}
	return s.write(ctx, path+"/config", "signing_key_config", nil)
}
