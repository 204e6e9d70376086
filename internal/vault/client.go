package vault

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// defaultRefresh is how old cached CA certificates may get.
const defaultRefresh = time.Minute

// revokeTimeout bounds how long Close waits for Vault to take the token back.
const revokeTimeout = 2 * time.Second

// Client is a logged-in Vault client. It is safe for concurrent use.
type Client struct {
	*session
	env     string
	nodeCAs *caCache
	apiCAs  *caCache
	// followed is the verifier set that tasks are signed under; moved says that
	// its active key is another.
	followed atomic.Pointer[followed]
	moved    chan struct{}

	// spawn runs work in a goroutine of the client's, on a context that ends at
	// Close.
	spawn func(work func(context.Context))
	end   context.CancelFunc
	owned sync.WaitGroup
}

// Login logs in. From then on the client renews its token by itself, and logs in
// again when Vault no longer knows it (its maximal life ended, it was revoked,
// Vault was restored). Nothing is signed before Follow. The caller closes it.
func Login(ctx context.Context, c Config) (*Client, error) {
	if err := checkEnv(c.Env); err != nil {
		return nil, err
	}
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if c.RefreshEvery == 0 {
		c.RefreshEvery = defaultRefresh
	}
	life, end := context.WithCancel(context.Background())
	client := &Client{
		session: s,
		env:     c.Env,
		nodeCAs: &caCache{every: c.RefreshEvery},
		apiCAs:  &caCache{every: c.RefreshEvery},
		moved:   make(chan struct{}, 1),
		end:     end,
	}
	client.spawn = func(work func(context.Context)) { client.owned.Go(func() { work(life) }) }
	client.spawn(s.keepAlive)
	return client, nil
}

func newSession(c Config) (*session, error) {
	if c.RoleIDFile == "" || c.SecretIDFile == "" {
		return nil, schema.Errorf(schema.KindInvalidRequest, "the files with Vault's role id and secret id are not configured")
	}
	conn, err := dial(c.Address, c.Timeout)
	if err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Observe == nil {
		c.Observe = func(string, time.Duration, error) {}
	}
	return &session{
		conn:         conn,
		roleIDFile:   c.RoleIDFile,
		secretIDFile: c.SecretIDFile,
		log:          c.Log,
		observe:      c.Observe,
		fresh:        make(chan time.Duration, 1),
	}, nil
}

// Close ends the client's goroutines, waits for them and gives the token back.
// It may be called twice.
func (c *Client) Close() {
	c.end()
	c.owned.Wait()
	if c.api.Token() != "" {
		c.revoke(revokeTimeout)
	}
	c.api.CloneConfig().HttpClient.CloseIdleConnections()
}
