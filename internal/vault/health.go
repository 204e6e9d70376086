package vault

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
)

// Healthy returns nil if Vault responds and is unsealed, and otherwise an error of
// KindServiceUnavailable. It needs no token.
func (c *Client) Healthy(ctx context.Context) error {
	const op = "checking Vault's health"
	h, err := c.api.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return c.interpretError(op, err)
	case !h.Initialized:
		return schema.NewError(schema.KindServiceUnavailable, "%s: Vault at %s is not initialized", op, c.address).WithNext("vault operator init")
	case h.Sealed:
		return unavailable(ReasonSealed, "vault operator unseal", "%s: Vault at %s is sealed", op, c.address)
	}
	return nil
}
