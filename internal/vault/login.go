package vault

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/vault/api"
	"github.com/hashicorp/vault/api/auth/approle"
	"github.com/hashicorp/vault/api/auth/kubernetes"

	"github.com/gpuaas/gpuaas/schema"
)

// KubernetesLogin is a login with the service account of the process's pod.
type KubernetesLogin struct {
	// Role is the role in Vault. Without it, the process logs in with an AppRole.
	Role string
	// Mount is the path of Vault's Kubernetes auth method.
	Mount string
	// TokenFile contains the service account's token. Each login reads it again, because
	// the kubelet replaces it.
	TokenFile string
}

// login is a login method with its credentials. from and next describe where the credentials
// come from and what to do if Vault rejects them.
type login struct {
	api.AuthMethod
	from, next string
}

// login returns the configured login with the credentials that its files contain now.
func (c Config) login() (login, error) {
	if c.Kubernetes.Role != "" {
		return c.Kubernetes.login()
	}
	const next = "gpuaas admin setup"
	roleID, err := readCredential(c.RoleIDFile, next)
	if err != nil {
		return login{}, err
	}
	secretID, err := readCredential(c.SecretIDFile, next)
	if err != nil {
		return login{}, err
	}
	method, err := approle.NewAppRoleAuth(roleID, &approle.SecretID{FromString: secretID}, approle.WithMountPath(loginMount))
	return login{method, fmt.Sprintf("the credentials in %s and %s", c.RoleIDFile, c.SecretIDFile), next}, err
}

func (k KubernetesLogin) login() (login, error) {
	token, err := readCredential(k.TokenFile, "mount a token of the pod's service account there, or set GPUAAS_VAULT_KUBERNETES_TOKEN_FILE")
	if err != nil {
		return login{}, err
	}
	method, err := kubernetes.NewKubernetesAuth(k.Role, kubernetes.WithMountPath(k.Mount), kubernetes.WithServiceAccountToken(token))
	return login{method, fmt.Sprintf("the service account's token in %s for the role %s", k.TokenFile, k.Role),
		fmt.Sprintf("compare the namespace, service account and audience of the pod with: vault read auth/%s/role/%s", k.Mount, k.Role)}, err
}

// exchange exchanges the credentials for a token.
func (s *session) exchange(ctx context.Context) (*api.Secret, error) {
	const op = "logging in"
	l, err := s.conf.login()
	if _, typed := errors.AsType[*schema.Error](err); typed {
		return nil, err
	}
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, op)
	}
	secret, err := l.Login(ctx, s.api)
	if e, ok := errors.AsType[*api.ResponseError](err); ok && (e.StatusCode == http.StatusBadRequest || e.StatusCode == http.StatusForbidden) {
		return nil, unavailable(ReasonLogin, l.next, "%s: Vault at %s rejected %s", op, s.address, l.from)
	}
	if err != nil {
		return nil, s.interpretError(op, err)
	}
	if secret == nil || secret.Auth == nil || secret.Auth.ClientToken == "" {
		return nil, schema.NewError(schema.KindInternal, "%s: the response of Vault at %s contains no token", op, s.address)
	}
	return secret, nil
}

// readCredential reads a credential file. Errors contain the file's name, never
// its content.
func readCredential(file, next string) (string, error) {
	text, err := readIfExists(file)
	if err == nil && text == "" {
		err = fmt.Errorf("%s is missing or empty", file)
	}
	if err != nil {
		return "", unavailable(ReasonLogin, next, "cannot read the Vault credentials: %v", err)
	}
	return text, nil
}
