package vault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// seconds formats a duration for Vault.
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int64(d.Seconds())) }

// nodeCA creates the node CA and the only role that signs with it. The role uses
// only the key of a CSR, and stores and leases nothing, so that renewals do not
// grow Vault's storage.
func (s *setup) nodeCA(ctx context.Context) error {
	if err := s.ca(ctx, nodeMount, nodeCAName(s.env)); err != nil {
		return err
	}
	role := leafRole(nodeCertTTL)
	role["client_flag"] = true
	role["server_flag"] = false
	role["ext_key_usage"] = "ClientAuth"
	role["allowed_uri_sans"] = nodeURIs(s.env)
	role["allow_ip_sans"] = false
	return s.role(ctx, nodeMount, nodeRole, role)
}

// apiCA creates the CA of the API's server certificate. It is separate from the
// node CA, so that a rotation of the node CA never affects how nodes trust the API.
func (s *setup) apiCA(ctx context.Context) error {
	if err := s.ca(ctx, apiMount, apiCAName(s.env)); err != nil {
		return err
	}
	role := leafRole(serverCertTTL)
	role["client_flag"] = false
	role["server_flag"] = true
	role["ext_key_usage"] = "ServerAuth"
	role["allow_ip_sans"] = len(s.ips) > 0
	// The API reads the addresses from here. The policy restricts them; a role
	// cannot.
	role["allowed_domains"] = append(append([]string{}, s.dns...), s.ips...)
	role["allow_bare_domains"] = true
	return s.role(ctx, apiMount, apiRole, role)
}

// leafRole returns the settings that both roles share. It turns off everything
// that Vault allows by default.
func leafRole(ttl time.Duration) map[string]any {
	return map[string]any{
		"use_csr_common_name":                false,
		"use_csr_sans":                       false,
		"require_cn":                         false,
		"key_type":                           "ec",
		"key_bits":                           256,
		"key_usage":                          "DigitalSignature",
		"code_signing_flag":                  false,
		"email_protection_flag":              false,
		"allow_any_name":                     false,
		"allow_localhost":                    false,
		"allow_subdomains":                   false,
		"allow_glob_domains":                 false,
		"allow_wildcard_certificates":        false,
		"allowed_other_sans":                 "",
		"allowed_serial_numbers":             "",
		"allowed_user_ids":                   "",
		"enforce_hostnames":                  true,
		"basic_constraints_valid_for_non_ca": true,
		"ttl":                                seconds(ttl),
		"max_ttl":                            seconds(ttl),
		"not_before_duration":                seconds(backdate),
		"no_store":                           true,
		"generate_lease":                     false,
	}
}

// ca creates a PKI engine and its first issuer, a P-256 key that never leaves
// Vault, unless they exist.
func (s *setup) ca(ctx context.Context, mount, name string) error {
	if err := s.mount(ctx, "sys/mounts", mount, "pki", map[string]any{"max_lease_ttl": seconds(caTTL)}); err != nil {
		return err
	}
	there, err := s.hasIssuer(ctx, mount)
	if err != nil {
		return err
	}
	if !there {
		_, err := s.do(ctx, "creating the CA of "+mount, put(mount+"/root/generate/internal", map[string]any{
			"common_name": name,
			"issuer_name": firstIssuer,
			"key_name":    firstIssuer,
			"key_type":    "ec",
			"key_bits":    256,
			"ttl":         seconds(caTTL),
			"format":      "pem",
			// The CA signs only leaves.
			"max_path_length":      0,
			"exclude_cn_from_sans": true,
		}))
		if err == nil {
			s.log.Info("created a CA in Vault", "mount", mount, "subject", name)
		} else if there, _ := s.hasIssuer(ctx, mount); !there {
			return err
		}
	}
	return s.checkIssuer(ctx, mount, name)
}

// hasIssuer reports whether the mount has any issuer. A mount whose first
// generation was deleted has later ones and needs no new first one.
func (s *setup) hasIssuer(ctx context.Context, mount string) (bool, error) {
	secret, err := s.do(ctx, "listing the CAs of "+mount, list(mount+"/issuers"))
	if errors.Is(err, errAbsent) {
		return false, nil
	}
	var response struct {
		Keys []string `json:"keys"`
	}
	if err == nil {
		err = decode(secret, &response)
	}
	return len(response.Keys) > 0, err
}

// checkIssuer rejects a first generation of another environment: one Vault serves
// one environment.
func (s *setup) checkIssuer(ctx context.Context, mount, name string) error {
	secret, err := s.do(ctx, "reading the CA of "+mount, get(mount+"/issuer/"+firstIssuer))
	if errors.Is(err, errAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	var response issuer
	if err := decode(secret, &response); err != nil {
		return err
	}
	certs, err := parseCerts(response.Certificate)
	if err != nil {
		return err
	}
	if len(certs) != 1 || certs[0].Subject.CommonName != name {
		return schema.Errorf(schema.KindInvalidRequest,
			"the CA in %s of Vault at %s is not %q, so it serves another environment; use another Vault or namespace", mount, s.address, name)
	}
	return nil
}

// role writes a role and keeps the issuer that a rotation assigned to it.
func (s *setup) role(ctx context.Context, mount, name string, role map[string]any) error {
	path := mount + "/roles/" + name
	secret, err := s.do(ctx, "reading the role "+path, get(path))
	role["issuer_ref"] = firstIssuer
	if err == nil {
		var there struct {
			IssuerRef string `json:"issuer_ref"`
		}
		if err := decode(secret, &there); err != nil {
			return err
		}
		if there.IssuerRef != "" {
			role["issuer_ref"] = there.IssuerRef
		}
	} else if !errors.Is(err, errAbsent) {
		return err
	}
	_, err = s.do(ctx, "writing the role "+path, put(path, role))
	return err
}

// signingKeys creates the task key and the root key of verifier sets unless they
// exist, and rejects a key that could have left Vault.
func (s *setup) signingKeys(ctx context.Context) error {
	if err := s.mount(ctx, "sys/mounts", transitMount, "transit", nil); err != nil {
		return err
	}
	for _, name := range []string{taskKey(s.env), rootKey(s.env)} {
		if err := s.signingKey(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *setup) signingKey(ctx context.Context, name string) error {
	path := transitMount + "/keys/" + name
	secret, err := s.do(ctx, "reading the key "+name, get(path))
	if errors.Is(err, errAbsent) {
		_, err = s.do(ctx, "creating the key "+name, put(path, map[string]any{
			"type":                   "ed25519",
			"exportable":             false,
			"allow_plaintext_backup": false,
			"auto_rotate_period":     0,
		}))
		if err != nil {
			return err
		}
		s.log.Info("created a signing key in Vault", "key", path)
		secret, err = s.do(ctx, "reading the key "+name, get(path))
	}
	if err != nil {
		return err
	}
	var key transitKey
	if err := decode(secret, &key); err != nil {
		return err
	}
	return s.protectKey(ctx, path, key)
}

// protectKey checks the settings that keep a key in Vault and prevent automatic
// rotation. Exportable and plaintext backup cannot be turned off again, so a key
// with either of them is rejected; the others are corrected.
func (s *setup) protectKey(ctx context.Context, path string, key transitKey) error {
	if key.Type != "ed25519" || key.Exportable || key.AllowPlaintextBackup {
		return schema.Errorf(schema.KindInvalidRequest,
			"the key %s in Vault at %s has type %s, exportable %t, plaintext backup %t; gpuaas needs an ed25519 key that cannot leave Vault",
			path, s.address, key.Type, key.Exportable, key.AllowPlaintextBackup)
	}
	if !key.DeletionAllowed && key.AutoRotatePeriod == 0 {
		return nil
	}
	_, err := s.do(ctx, "protecting the key "+path, put(path+"/config", map[string]any{
		"deletion_allowed":   false,
		"auto_rotate_period": 0,
	}))
	return err
}
