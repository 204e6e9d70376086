package vault

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
)

// casRefresh is the maximum age of cached CA certificates.
const casRefresh = time.Minute

// revokeTimeout limits how long Close waits for Vault to revoke the token.
const revokeTimeout = 2 * time.Second

// Client is a logged-in Vault client. It is safe for concurrent use.
type Client struct {
	*session
	nodeCAs *caCache
	apiCAs  *caCache
	// followed is the verifier set under which tasks are signed. keyChanged gets a
	// value when its active key changes.
	followed   atomic.Pointer[followed]
	keyChanged chan struct{}
	*expiry
	*checkpointKey
	saving saving
	// resumed is the server certificate of an earlier process; nil after it was replaced.
	resumed atomic.Pointer[tls.Certificate]

	// spawn runs work in a goroutine of the client. Its context ends at Close.
	spawn func(work func(context.Context))
	end   context.CancelFunc
	owned sync.WaitGroup
}

// Login logs in. The client then renews its token in the background, and logs in
// again when Vault no longer accepts the token: it reached its maximum lifetime,
// it was revoked, or Vault was restored. The client signs nothing before Follow.
// The caller must call Close.
func Login(ctx context.Context, c Config) (*Client, error) {
	client, err := newClient(c)
	if err != nil {
		return nil, err
	}
	if err := client.replaceToken(ctx, ""); err != nil {
		return nil, err
	}
	client.spawn(client.keepAlive)
	watchSecretID(client)
	return client, nil
}

// newClient returns a client that has not logged in and that does nothing yet.
func newClient(c Config) (*Client, error) {
	if err := checkEnv(c.Env); err != nil {
		return nil, err
	}
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	lifetime, end := context.WithCancel(context.Background())
	client := &Client{
		session:       s,
		expiry:        &expiry{session: s},
		checkpointKey: &checkpointKey{s},
		nodeCAs:       &caCache{mount: nodeMount, every: casRefresh, changed: make(chan struct{}, 1)},
		apiCAs:        &caCache{mount: apiMount, every: casRefresh},
		keyChanged:    make(chan struct{}, 1),
		end:           end,
	}
	client.spawn = func(work func(context.Context)) { client.owned.Go(func() { work(lifetime) }) }
	return client, nil
}

// DaemonConfig returns the configuration of a daemon's client.
func DaemonConfig(p *daemon.Process, e daemon.Engines) Config {
	return Config{Address: e.VaultAddr, RoleIDFile: e.RoleIDFile, SecretIDFile: e.SecretIDFile,
		Kubernetes: KubernetesLogin{Role: e.KubeRole, Mount: e.KubeMount, TokenFile: e.KubeToken},
		Env:        e.Env, Log: p.Log, Observe: p.Metrics.VaultRequest, SecretIDEnds: p.Metrics.SecretIDEnds}
}

// LoginDaemon logs in with the credentials of a daemon's configuration, and closes the
// client with the process.
func LoginDaemon(ctx context.Context, p *daemon.Process, e daemon.Engines) (*Client, error) {
	c, err := Login(ctx, DaemonConfig(p, e))
	if err == nil {
		p.OnClose(c.Close)
	}
	return c, err
}

func newSession(c Config) (*session, error) {
	if c.Kubernetes.Role == "" && (c.RoleIDFile == "" || c.SecretIDFile == "") {
		return nil, schema.NewError(schema.KindInvalidRequest, "neither a Kubernetes role nor the files with Vault's role ID and secret ID are configured")
	}
	conn, err := dial(c.Address)
	if err != nil {
		return nil, err
	}
	if c.Observe == nil {
		c.Observe = func(string, time.Duration, error) {}
	}
	if c.SecretIDEnds == nil {
		c.SecretIDEnds = func(time.Duration) {}
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return &session{conn: conn, conf: c, watchers: make(chan *api.LifetimeWatcher, 1)}, nil
}

// minRepeat is the shortest time between two calls by repeat.
const minRepeat = time.Second

// repeat calls work in the background until Close: after the first duration, after
// the one that work returns, after each value on wake, and with backoff after an
// error, which it logs as the failure.
func (c *Client) repeat(first time.Duration, wake <-chan struct{}, failure string, work func(ctx context.Context) (time.Duration, error)) {
	c.spawn(func(ctx context.Context) {
		delays := daemon.NewBackoff()
		timer := time.NewTimer(first)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-wake:
			case <-timer.C:
			}
			wait, err := work(ctx)
			if err == nil {
				delays.Reset()
			} else {
				wait = delays.NextBackOff()
				c.conf.Log.Warn("background work failed", "failure", failure, "retry_in", wait, "err", err, "next", schema.AsError(err).Next)
			}
			timer.Reset(wait)
		}
	})
}

// Close ends the client's goroutines, waits for them and revokes the token. It
// may be called twice.
func (c *Client) Close() {
	c.end()
	c.owned.Wait()
	if c.api.Token() != "" {
		ctx, cancel := context.WithTimeout(context.Background(), revokeTimeout)
		defer cancel()
		if _, err := c.send(ctx, put("auth/token/revoke-self", nil)); err != nil {
			c.conf.Log.Debug("cannot revoke the Vault token; it expires", "address", c.address)
		}
		c.api.ClearToken()
	}
	c.api.CloneConfig().HttpClient.CloseIdleConnections()
}
