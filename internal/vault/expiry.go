package vault

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	// expiryEvery is the interval between two checks of the secret ID's end.
	expiryEvery = time.Hour
	// expiryShare is the share of a secret ID's life below which its end is a fault.
	expiryShare = 1. / 4
)

// expiry is the end of the client's secret ID.
type expiry struct {
	// loginRole is the AppRole, as the token names it.
	loginRole atomic.Pointer[string]
	fault     atomic.Pointer[schema.Error]
}

// SecretIDFault returns an error if the client's secret ID is about to expire: once it has,
// and the token has reached its greatest age, the process cannot log in.
func (c *Client) SecretIDFault() error {
	if e := c.expiry.fault.Load(); e != nil {
		return e
	}
	return nil
}

// checkExpiry reads the end of the secret ID that the file has now.
func (c *Client) checkExpiry(ctx context.Context) (again time.Duration, err error) {
	life, err := c.secretIDLife(ctx)
	if errors.Is(err, errAbsent) {
		c.expires("the secret ID in %s is no longer valid: this process can use Vault only until its token ends", c.conf.SecretIDFile)
		return time.Minute, nil
	}
	if err != nil || life.Ends.IsZero() {
		c.expiry.fault.Store(nil)
		return expiryEvery, err
	}
	left, due := life.left(time.Now(), expiryShare)
	c.conf.SecretIDEnds(left)
	if !due {
		c.expiry.fault.Store(nil)
		return expiryEvery, nil
	}
	c.expires("the secret ID in %s expires at %s, and then this process cannot log in to Vault", c.conf.SecretIDFile, life.Ends.UTC().Format(time.RFC3339))
	return min(expiryEvery, max(time.Minute, left/4)), nil
}

// expires logs and stores the fault.
func (c *Client) expires(format string, args ...any) {
	fault := schema.NewError(schema.KindServiceUnavailable, format, args...).WithReason(ReasonSecretIDExpires).WithNext("gpuaas admin rotate-secret-ids")
	c.conf.Log.Warn("the Vault login is about to end", "err", fault, "next", fault.Next)
	c.expiry.fault.Store(fault)
}

// secretIDLife looks up the secret ID in the file, for the AppRole of the token.
func (c *Client) secretIDLife(ctx context.Context) (life secretIDLife, err error) {
	if c.expiry.loginRole.Load() == nil {
		token, err := fetch[struct {
			Meta map[string]string `json:"meta"`
		}](ctx, c, "own_token", get("auth/token/lookup-self"))
		if err != nil {
			return life, err
		}
		c.expiry.loginRole.Store(new(token.Meta["role_name"]))
	}
	secretID, err := readCredential(c.conf.SecretIDFile)
	if err != nil {
		return life, err
	}
	return lookUpSecretID(ctx, c, loginRole{name: *c.expiry.loginRole.Load()}.path(), secretID)
}
