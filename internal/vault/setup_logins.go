package vault

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// writePolicies writes all policies.
func (s setup) writePolicies(ctx context.Context) error {
	for _, name := range []string{workerName, apiName, setsName, secretIDsName, trustName} {
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

// logins creates the AppRoles with their credential files, and the roles for service
// accounts, whichever are configured.
func (s setup) logins(ctx context.Context) error {
	if s.limits.Kubernetes.Mount != "" {
		if err := s.serviceAccounts(ctx); err != nil {
			return err
		}
		if s.outDir == "" {
			return nil
		}
	}
	return s.appRoles(ctx)
}

func (s setup) appRoles(ctx context.Context) error {
	if err := s.mount(ctx, "sys/auth", loginMount, "approle", nil); err != nil {
		return err
	}
	return s.credentials(func(dir *os.File) error {
		for _, r := range s.roles() {
			if err := s.appRole(ctx, r, dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// RotateSecretIDs creates a secret ID for each AppRole and writes it to its file in outDir.
// The ones before remain valid until their end, so that processes with a copy of the file
// continue. Setup must have created the AppRoles. The policy gpuaas-secret-ids is enough.
func (a *Admin) RotateSecretIDs(ctx context.Context, outDir string) error {
	s := setup{Admin: a, outDir: outDir}
	return s.credentials(func(dir *os.File) error {
		for _, r := range s.roles() {
			if err := s.newSecretID(ctx, r, dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// credentials runs write with the locked directory of the credentials.
func (s setup) credentials(write func(dir *os.File) error) error {
	dir, err := lockDir(s.outDir)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "preparing the directory %s for credentials", s.outDir)
	}
	defer func() { _ = dir.Close() }() // releases the lock; files are synced
	return write(dir)
}

// loginRole is an AppRole, with the prefix of its files and its networks.
type loginRole struct {
	name, prefix string
	cidrs        []string
}

func (r loginRole) path() string { return "auth/" + loginMount + "/role/" + r.name }

// tokens are the settings of the role's tokens.
func (r loginRole) tokens() map[string]any {
	return map[string]any{"token_policies": r.name, "token_ttl": seconds(tokenTTL), "token_max_ttl": seconds(tokenMaxTTL),
		"token_bound_cidrs": append([]string{}, r.cidrs...)} // an empty list removes the ones before
}

func (s setup) roles() []loginRole {
	return []loginRole{{workerName, "worker", s.limits.WorkerCIDRs}, {apiName, "api", s.limits.APICIDRs},
		{trustName, "rotator", s.limits.WorkerCIDRs}}
}

// appRole writes one AppRole and its files <prefix>-role-id and
// <prefix>-secret-id. Its tokens have only their own policy, without Vault's
// default one.
func (s setup) appRole(ctx context.Context, r loginRole, dir *os.File) error {
	given := r.tokens()
	given["secret_id_ttl"], given["secret_id_bound_cidrs"] = seconds(s.limits.SecretIDTTL), given["token_bound_cidrs"]
	err := s.write(ctx, r.path(), "app_role", given)
	if err != nil {
		return err
	}
	role, err := fetch[struct {
		RoleID string `json:"role_id"`
	}](ctx, s, "", get(r.path()+"/role-id"))
	if err != nil {
		return err
	}
	if err := writeCredential(dir, r.prefix+"-role-id", role.RoleID); err != nil {
		return err
	}
	return s.secretID(ctx, r, dir)
}

// serviceAccounts writes the roles for service accounts. The tokens are those of the AppRoles.
func (s setup) serviceAccounts(ctx context.Context) error {
	k := s.limits.Kubernetes
	accounts := map[string][]string{
		workerName: {workerAccount, trustAccount}, // a worker that rotates keys is a worker, too
		trustName:  {trustAccount},
		apiName:    {apiAccount},
	}
	for _, r := range s.roles() {
		given := r.tokens()
		given["bound_service_account_names"], given["bound_service_account_namespaces"] = accounts[r.name], []string{k.Namespace}
		given["audience"] = k.Audience
		if err := s.write(ctx, "auth/"+k.Mount+"/role/"+r.name, "service_account_role", given); err != nil {
			return err
		}
	}
	s.log.Info("wrote the roles for service accounts", "mount", "auth/"+k.Mount, "namespace", k.Namespace, "audience", k.Audience)
	return nil
}

// secretIDLife is Vault's description of a secret ID. Its end is zero if it has none.
type secretIDLife struct {
	Created time.Time `json:"creation_time"`
	Ends    time.Time `json:"expiration_time"`
}

// left returns the remaining life and whether less than the given share of it is left.
func (l secretIDLife) left(now time.Time, share float64) (left time.Duration, due bool) {
	left = l.Ends.Sub(now)
	return left, left.Seconds() < share*l.Ends.Sub(l.Created).Seconds()
}

// lookUpSecretID returns the life of a secret ID, errAbsent if it is not valid.
func lookUpSecretID(ctx context.Context, c caller, role, secretID string) (life secretIDLife, err error) {
	known, err := c.call(ctx, "secret_id", put(role+"/secret-id/lookup", map[string]any{"secret_id": secretID}))
	switch {
	case err != nil:
	case known == nil:
		err = errAbsent
	case json.Unmarshal(known, &life) != nil:
		err = malformed()
	}
	return life, err
}

// secretID creates a secret ID unless the one in the file still works for half of its
// life. Creating one in each run would accumulate unused credentials that remain valid.
func (s setup) secretID(ctx context.Context, r loginRole, dir *os.File) error {
	file := r.prefix + "-secret-id"
	held, err := readIfExists(filepath.Join(dir.Name(), file))
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "reading Vault credentials")
	}
	if held == "" {
		return s.newSecretID(ctx, r, dir)
	}
	life, err := lookUpSecretID(ctx, s, r.path(), held)
	if err != nil && !errors.Is(err, errAbsent) {
		return err
	}
	if err == nil && s.lives(life) {
		return writeCredential(dir, file, held)
	}
	return s.newSecretID(ctx, r, dir)
}

// lives reports whether a secret ID needs no successor: it has no end, and needs none, or
// at least half of its life is left.
func (s setup) lives(l secretIDLife) bool {
	if l.Ends.IsZero() {
		return s.limits.SecretIDTTL == 0
	}
	_, due := l.left(time.Now(), 1./2)
	return !due
}

func (s setup) newSecretID(ctx context.Context, r loginRole, dir *os.File) error {
	made, err := fetch[struct {
		SecretID string `json:"secret_id"`
	}](ctx, s, "", create(r.path()+"/secret-id", nil))
	if err != nil {
		return err
	}
	file := r.prefix + "-secret-id"
	s.log.Info("created a Vault secret ID", "role", r.path(), "file", filepath.Join(dir.Name(), file))
	return writeCredential(dir, file, made.SecretID)
}
