package vault

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

// Reach returns the time of the clock of the Vault at the address, the default is VAULT_ADDR, if it
// responds, is initialized and is unsealed. It needs no token.
func Reach(ctx context.Context, address string) (time.Time, error) {
	const op = "checking Vault's health"
	c, err := dial(address)
	if err != nil {
		return time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	h, err := c.api.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return time.Time{}, c.interpretError(op, err)
	case !h.Initialized:
		return time.Time{}, schema.NewError(schema.KindServiceUnavailable, "%s: Vault at %s is not initialized", op, c.address).WithNext("vault operator init")
	case h.Sealed:
		return time.Time{}, unavailable(ReasonSealed, "vault operator unseal", "%s: Vault at %s is sealed", op, c.address)
	}
	return time.Unix(h.ServerTimeUTC, 0), nil
}

// Missing returns the paths of the objects of Setup that Vault does not have: the CAs, their roles,
// and the signing keys. It changes nothing.
func (a *Admin) Missing(ctx context.Context) (missing []string, err error) {
	for _, r := range []request{list(nodeMount + "/issuers"), get(nodeMount + "/roles/" + nodeRole), list(apiMount + "/issuers"), get(apiMount + "/roles/" + apiRole),
		get(transitMount + "/keys/" + taskKey(a.env)), get(transitMount + "/keys/" + rootKey(a.env)), get(transitMount + "/keys/" + checkpointKeyName(a.env))} {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		_, err := a.send(ctx, r)
		cancel()
		response, answered := errors.AsType[*api.ResponseError](err)
		switch {
		case errors.Is(err, errAbsent), answered && response.StatusCode == http.StatusNotFound:
			missing = append(missing, r.path)
		case err != nil:
			return nil, a.interpretError("reading "+r.path, err)
		}
	}
	return missing, nil
}
