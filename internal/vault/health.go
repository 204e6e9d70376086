package vault

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Now returns the time of Vault's clock, in whole seconds. It needs no token, and Vault may be
// sealed.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	const op = "reading Vault's clock"
	h, err := c.api.Sys().HealthWithContext(ctx)
	if err != nil {
		return time.Time{}, c.interpretError(op, err)
	}
	if h.ServerTimeUTC == 0 {
		return time.Time{}, unavailable("", "", "%s: Vault at %s does not report it", op, c.address)
	}
	return time.Unix(h.ServerTimeUTC, 0), nil
}

// Healthy returns nil if Vault responds and is unsealed, and the client has logged in, and otherwise
// an error of KindServiceUnavailable. It needs no token.
func (c *Client) Healthy(ctx context.Context) error {
	if absent := c.absent.Load(); absent != nil {
		return absent
	}
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
