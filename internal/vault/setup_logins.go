package vault

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/gpuaas/gpuaas/schema"
)

// policies writes the policies of the two logins, and that of those who sign
// verifier sets, which no login of ours has.
func (s *setup) policies(ctx context.Context) error {
	in := policyInput{TaskKey: taskKey(s.env), RootKey: rootKey(s.env), NodeURIs: nodeURIs(s.env), DNS: s.dns, IPs: s.ips}
	for _, name := range []string{workerName, apiName, setsName} {
		text, err := renderPolicy(name, in)
		if err != nil {
			return schema.Wrap(schema.KindInternal, err, "rendering the policy %s", name)
		}
		if _, err := s.do(ctx, "writing the policy "+name, put("sys/policies/acl/"+name, map[string]any{"policy": text})); err != nil {
			return err
		}
	}
	return nil
}

// logins makes the two AppRoles and the files to log in with.
func (s *setup) logins(ctx context.Context) error {
	if err := s.mount(ctx, "sys/auth", loginMount, "approle", nil); err != nil {
		return err
	}
	unlock, err := lockDir(s.outDir)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "preparing the folder %s for credentials", s.outDir)
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
// <prefix>-secret-id. Tokens carry only their own policy, not Vault's default
// one.
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
	secret, err := s.do(ctx, "reading the role id of "+name, get(path+"/role-id"))
	if err != nil {
		return err
	}
	var answer struct {
		RoleID string `json:"role_id"`
	}
	if err := decode(secret, &answer); err != nil {
		return err
	}
	return s.keep(file, answer.RoleID)
}

// secretID makes a secret id unless the one in the file still works. Making one
// at each run would leave a trail of credentials that nobody holds and all of
// them good.
func (s *setup) secretID(ctx context.Context, name, path, file string) error {
	held, err := readIfThere(file)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "reading the credentials of %s", name)
	}
	if held != "" {
		secret, err := s.do(ctx, "looking up the secret id of "+name, put(path+"/secret-id/lookup", map[string]any{"secret_id": held}))
		if err != nil && !errors.Is(err, errAbsent) {
			return err
		}
		if err == nil && secret != nil {
			return s.keep(file, held)
		}
	}
	secret, err := s.do(ctx, "making a secret id of "+name, put(path+"/secret-id", nil))
	if err != nil {
		return err
	}
	var answer struct {
		SecretID string `json:"secret_id"`
	}
	if err := decode(secret, &answer); err != nil {
		return err
	}
	s.log.Info("made a vault secret id", "role", name, "file", file)
	return s.keep(file, answer.SecretID)
}

// keep makes the file hold the content with mode 0600; a file that does is left
// alone.
func (s *setup) keep(file, content string) error {
	if err := keepFile(file, content); err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials")
	}
	return nil
}
