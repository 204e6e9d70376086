package vault

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// refreshRetry is how long a failed refresh of a cache is not tried again, so
// that a Vault that is away does not slow down those who read the cache.
const refreshRetry = 5 * time.Second

// caCache holds the certificates of a mount. Once read they are served for as
// long as Vault is away.
type caCache struct {
	every time.Duration

	mu   sync.Mutex
	held *generations
	due  time.Time // when the next reader refreshes
}

// generations are the CAs of a mount, the oldest first.
type generations struct {
	live    []*x509.Certificate // those that may issue
	retired []*x509.Certificate // those that may no longer
}

// Roots implements nodeapi.Issuer: the live generations of the node CA, those
// which may issue. They are cached, and served from the cache while Vault is
// away. The caller must not change the slice.
func (c *Client) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	g, err := c.caCerts(ctx, c.nodeCAs, nodeMount)
	return g.live, err
}

// Retired implements nodeapi.Issuer: the generations of the node CA that Vault
// still knows and that may no longer issue, cached as Roots are. One whose
// issuer was deleted in Vault is no longer known for a former one.
func (c *Client) Retired(ctx context.Context) ([]*x509.Certificate, error) {
	g, err := c.caCerts(ctx, c.nodeCAs, nodeMount)
	return g.retired, err
}

// NodeCA returns Roots as PEM.
func (c *Client) NodeCA(ctx context.Context) (string, error) {
	certs, err := c.Roots(ctx)
	return certPEM(certs...), err
}

// ServerCA returns the CAs that verify the API's server certificate as PEM,
// cached as Roots are.
func (c *Client) ServerCA(ctx context.Context) (string, error) {
	g, err := c.caCerts(ctx, c.apiCAs, apiMount)
	return certPEM(g.live...), err
}

// caCerts returns a mount's CAs from the cache, and refreshes it when it is due:
// one reader does, the others are served what is there.
func (c *Client) caCerts(ctx context.Context, cache *caCache, mount string) (generations, error) {
	now := time.Now()
	cache.mu.Lock()
	held, due := cache.held, !now.Before(cache.due)
	if due && held != nil {
		cache.due = now.Add(refreshRetry)
	}
	cache.mu.Unlock()
	if !due && held != nil {
		return *held, nil
	}
	fresh, err := c.readCAs(ctx, cache, mount)
	if err != nil && held != nil {
		c.log.Warn("serving cached CA certificates", "mount", mount, "err", err)
		return *held, nil
	}
	return fresh, err
}

// readCAs reads a mount's CAs and fills the cache.
func (c *Client) readCAs(ctx context.Context, cache *caCache, mount string) (generations, error) {
	none := generations{}
	secret, err := c.call(ctx, "issuers", list(mount+"/issuers"))
	if errors.Is(err, errAbsent) {
		return none, schema.NewError(schema.KindInternal, "Vault at %s has no CA in %s", c.address, mount).WithNext("gpuaas admin setup")
	}
	if err != nil {
		return none, err
	}
	var answer struct {
		Keys []string `json:"keys"`
	}
	if err := decode(secret, &answer); err != nil {
		return none, err
	}
	read := generations{}
	for _, id := range answer.Keys {
		if err := c.readIssuer(ctx, mount, id, &read); err != nil {
			return none, err
		}
	}
	if len(read.live) == 0 {
		return none, schema.NewError(schema.KindInternal, "no CA of %s in Vault at %s may issue", mount, c.address).WithNext("gpuaas admin setup")
	}
	// A bundle's fingerprint is that of its first certificate.
	oldestFirst(read.live)
	oldestFirst(read.retired)
	cache.mu.Lock()
	defer cache.mu.Unlock()
	cache.held, cache.due = &read, time.Now().Add(cache.every)
	return read, nil
}

func oldestFirst(certs []*x509.Certificate) {
	slices.SortFunc(certs, func(a, b *x509.Certificate) int {
		return cmp.Or(a.NotBefore.Compare(b.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
}

// readIssuer adds an issuer's certificate to the generations. One that may no
// longer issue is retired: that is how an operator does it.
func (c *Client) readIssuer(ctx context.Context, mount, id string, to *generations) error {
	secret, err := c.call(ctx, "issuers", get(mount+"/issuer/"+id))
	if errors.Is(err, errAbsent) {
		return nil // deleted since it was listed
	}
	if err != nil {
		return err
	}
	var answer issuer
	if err := decode(secret, &answer); err != nil {
		return err
	}
	certs, err := parseCerts(answer.Certificate)
	if answer.issues() {
		to.live = append(to.live, certs...)
	} else {
		to.retired = append(to.retired, certs...)
	}
	return err
}

// issuer is what Vault says of a CA.
type issuer struct {
	Name        string `json:"issuer_name"`
	Certificate string `json:"certificate"`
	Usage       string `json:"usage"`
}

func (i issuer) issues() bool {
	return slices.Contains(strings.Split(i.Usage, ","), "issuing-certificates")
}
