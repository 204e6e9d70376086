package vault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// ProviderCredential returns the credential of a provider of machines that Vault has now. Operators
// store it with the command that the errors name; the path is fixed, so that the worker's policy
// allows nothing else. valid reports whether a credential has the provider's form.
//
// KindServiceUnavailable with a reason of Vault while Vault is not available, and
// machine.ReasonAuth if Vault has no credential or one of another form.
func (s *session) ProviderCredential(ctx context.Context, provider string, valid func(string) bool) (schema.Secret, error) {
	secret, err := fetch[struct {
		Data map[string]any `json:"data"`
	}](ctx, s, "provider_credential", get(providerMount+"/data/"+provider))
	if err != nil && !errors.Is(err, errAbsent) {
		return schema.Secret{}, err
	}
	value, given := secret.Data[credentialField]
	text, isText := value.(string)
	text = strings.TrimSpace(text)
	what := "has no"
	switch {
	case given && !(isText && valid(text)):
		what = "has a malformed"
	case given:
		return schema.NewSecret(text), nil
	}
	return schema.Secret{}, machine.Errorf(machine.ReasonAuth, "Vault at %s %s credential of provider %s: field %s of the secret %s in %s",
		s.address, what, provider, credentialField, provider, providerMount).
		WithNext(fmt.Sprintf("store the key: vault kv put -mount=%s %s %s=- <FILE ; then retry",
			providerMount, provider, credentialField))
}

// providerCredentials mounts the engine of providers' credentials, which operators write.
func (s setup) providerCredentials(ctx context.Context) error {
	return s.mount(ctx, "sys/mounts", providerMount, "kv", nil)
}
