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

// expiry watches the end of a session's secret ID.
type expiry struct {
	session *session
	// loginRole is the AppRole, as the token names it.
	loginRole atomic.Pointer[string]
	fault     atomic.Pointer[schema.Error]
}

// watchSecretID checks the end of the secret ID in the background. A login with a service
// account has none.
func watchSecretID(c *Client) {
	if c.conf.Kubernetes.Role == "" {
		c.repeat(0, nil, "reading the end of the Vault secret ID", c.check)
	}
}

// SecretIDFault returns an error if the process's secret ID is about to expire: once it has,
// and the token has reached its greatest age, the process cannot log in.
func (x *expiry) SecretIDFault() error {
	if e := x.fault.Load(); e != nil {
		return e
	}
	return nil
}

// check reads the end of the secret ID that the file has now.
func (x *expiry) check(ctx context.Context) (again time.Duration, err error) {
	life, err := x.life(ctx)
	if errors.Is(err, errAbsent) {
		x.expires("the secret ID in %s is no longer valid: this process can use Vault only until its token ends", x.session.conf.SecretIDFile)
		return time.Minute, nil
	}
	if err != nil || life.Ends.IsZero() {
		x.fault.Store(nil)
		return expiryEvery, err
	}
	left, due := life.left(time.Now(), expiryShare)
	x.session.conf.SecretIDEnds(left)
	if !due {
		x.fault.Store(nil)
		return expiryEvery, nil
	}
	x.expires("the secret ID in %s expires at %s, and then this process cannot log in to Vault", x.session.conf.SecretIDFile, life.Ends.UTC().Format(time.RFC3339))
	return min(expiryEvery, max(time.Minute, left/4)), nil
}

// expires logs and stores the fault.
func (x *expiry) expires(format string, args ...any) {
	fault := schema.NewError(schema.KindServiceUnavailable, format, args...).WithReason(ReasonSecretIDExpires).WithNext("gpuaas admin rotate-secret-ids")
	x.session.conf.Log.Warn("the Vault login is about to end", "err", fault, "next", fault.Next)
	x.fault.Store(fault)
}

// life looks up the secret ID in the file, for the AppRole of the token.
func (x *expiry) life(ctx context.Context) (life secretIDLife, err error) {
	if x.loginRole.Load() == nil {
		token, err := fetch[struct {
			Meta map[string]string `json:"meta"`
		}](ctx, x.session, "own_token", get("auth/token/lookup-self"))
		if err != nil {
			return life, err
		}
		x.loginRole.Store(new(token.Meta["role_name"]))
	}
	secretID, err := readCredential(x.session.conf.SecretIDFile, "gpuaas admin setup")
	if err != nil {
		return life, err
	}
	return lookUpSecretID(ctx, x.session, loginRole{name: *x.loginRole.Load()}.path(), secretID)
}
