package vault

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
)

// Healthy returns nil when Vault answers and is unsealed, else an error of
// KindServiceUnavailable. It needs no token.
func (c *Client) Healthy(ctx context.Context) error {
	const doing = "checking Vault's health"
	h, err := c.api.Sys().HealthWithContext(ctx)
	switch {
	case err != nil:
		return c.interpretError(doing, err)
	case !h.Initialized:
		return schema.NewError(schema.KindServiceUnavailable, "%s: Vault at %s is not initialized", doing, c.address).WithNext("vault operator init")
	case h.Sealed:
		return c.unavailable(ReasonSealed, "vault operator unseal", "%s: Vault at %s is sealed", doing, c.address)
	}
	return nil
}
