package vault

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuaas/gpuaas/schema"
)

// writePolicies writes all policies.
func (s setup) writePolicies(ctx context.Context) error {
	for _, name := range []string{workerName, apiName, rotatorName, setsName} {
		text, err := s.policy(name)
		if err == nil {
			err = s.write(ctx, "sys/policies/acl/"+name, "", map[string]any{"policy": text})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// logins creates the AppRoles and their credential files.
func (s setup) logins(ctx context.Context) error {
	if err := s.mount(ctx, "sys/auth", loginMount, "approle", nil); err != nil {
		return err
	}
	dir, err := lockDir(s.outDir)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "preparing the directory %s for credentials", s.outDir)
	}
	defer func() { _ = dir.Close() }() // releases the lock; files are synced
	for name, prefix := range map[string]string{workerName: "worker", apiName: "api", rotatorName: "rotator"} {
		if err := s.appRole(ctx, name, dir, prefix); err != nil {
			return err
		}
	}
	return nil
}

// appRole writes one AppRole and its files <prefix>-role-id and
// <prefix>-secret-id. Its tokens have only their own policy, without Vault's
// default one.
func (s setup) appRole(ctx context.Context, name string, dir *os.File, prefix string) error {
	path := "auth/" + loginMount + "/role/" + name
	err := s.write(ctx, path, "app_role", map[string]any{
		"token_policies": name, "token_ttl": seconds(tokenTTL), "token_max_ttl": seconds(tokenMaxTTL),
	})
	if err != nil {
		return err
	}
	role, err := fetch[struct {
		RoleID string `json:"role_id"`
	}](ctx, s, "", get(path+"/role-id"))
	if err != nil {
		return err
	}
	if err := writeCredential(dir, prefix+"-role-id", role.RoleID); err != nil {
		return err
	}
	return s.secretID(ctx, path, dir, prefix+"-secret-id")
}

// secretID creates a secret ID unless the one in the file still works. Creating
// one in each run would accumulate unused credentials that remain valid.
func (s setup) secretID(ctx context.Context, path string, dir *os.File, name string) error {
	held, err := readIfExists(filepath.Join(dir.Name(), name))
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "reading Vault credentials")
	}
	if held != "" {
		known, err := s.call(ctx, "", put(path+"/secret-id/lookup", map[string]any{"secret_id": held}))
		if err == nil && known != nil && json.Unmarshal(known, &struct{}{}) != nil {
			err = malformed()
		}
		if err != nil && !errors.Is(err, errAbsent) {
			return err
		}
		if err == nil && known != nil {
			return writeCredential(dir, name, held)
		}
	}
	made, err := fetch[struct {
		SecretID string `json:"secret_id"`
	}](ctx, s, "", put(path+"/secret-id", nil))
	if err != nil {
		return err
	}
	s.log.Info("created a Vault secret ID", "role", path, "file", filepath.Join(dir.Name(), name))
	return writeCredential(dir, name, made.SecretID)
}
