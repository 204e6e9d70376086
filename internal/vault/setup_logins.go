package vault

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/gpuaas/gpuaas/schema"
)

// writePolicies writes all policies.
func (s *setup) writePolicies(ctx context.Context) error {
	for name, text := range s.policies() {
		if _, err := s.do(ctx, "writing the policy "+name, put("sys/policies/acl/"+name, map[string]any{"policy": text})); err != nil {
			return err
		}
	}
	return nil
}

// logins creates the two AppRoles and their credential files.
func (s *setup) logins(ctx context.Context) error {
	if err := s.mount(ctx, "sys/auth", loginMount, "approle", nil); err != nil {
		return err
	}
	unlock, err := lockDir(s.outDir)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "preparing the directory %s for credentials", s.outDir)
	}
	defer unlock()
	for name, prefix := range map[string]string{workerName: "worker", apiName: "api"} {
		if err := s.appRole(ctx, name, filepath.Join(s.outDir, prefix)); err != nil {
			return err
		}
	}
	return nil
}

// appRole writes one AppRole and its files <prefix>-role-id and
// <prefix>-secret-id. Its tokens have only their own policy, without Vault's
// default one.
func (s *setup) appRole(ctx context.Context, name, prefix string) error {
	path := "auth/" + loginMount + "/role/" + name
	_, err := s.do(ctx, "writing the AppRole "+name, put(path, map[string]any{
		"bind_secret_id":          true,
		"token_policies":          name,
		"token_no_default_policy": true,
		"token_type":              "service",
		"token_ttl":               seconds(tokenTTL),
		"token_max_ttl":           seconds(tokenMaxTTL),
		"token_explicit_max_ttl":  0,
		"secret_id_num_uses":      0,
		"secret_id_ttl":           0,
	}))
	if err != nil {
		return err
	}
	if err := s.roleID(ctx, name, path, prefix+"-role-id"); err != nil {
		return err
	}
	return s.secretID(ctx, name, path, prefix+"-secret-id")
}

func (s *setup) roleID(ctx context.Context, name, path, file string) error {
	secret, err := s.do(ctx, "reading the role ID of "+name, get(path+"/role-id"))
	if err != nil {
		return err
	}
	var response struct {
		RoleID string `json:"role_id"`
	}
	if err := decode(secret, &response); err != nil {
		return err
	}
	return writeCredential(file, response.RoleID)
}

// secretID creates a secret ID unless the one in the file still works. Creating
// one in each run would accumulate unused credentials that remain valid.
func (s *setup) secretID(ctx context.Context, name, path, file string) error {
	held, err := readIfExists(file)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "reading the credentials of %s", name)
	}
	if held != "" {
		secret, err := s.do(ctx, "looking up the secret ID of "+name, put(path+"/secret-id/lookup", map[string]any{"secret_id": held}))
		if err != nil && !errors.Is(err, errAbsent) {
			return err
		}
		if err == nil && secret != nil {
			return writeCredential(file, held)
		}
	}
	secret, err := s.do(ctx, "creating a secret ID of "+name, put(path+"/secret-id", nil))
	if err != nil {
		return err
	}
	var response struct {
		SecretID string `json:"secret_id"`
	}
	if err := decode(secret, &response); err != nil {
		return err
	}
	s.log.Info("created a Vault secret ID", "role", name, "file", file)
	return writeCredential(file, response.SecretID)
}
