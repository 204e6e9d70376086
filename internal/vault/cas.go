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

// refreshRetry is the delay after a failed refresh of a cache, so that an
// unavailable Vault does not slow down readers of the cache.
const refreshRetry = 5 * time.Second

// caCache caches the CA certificates of a mount. It serves old ones while Vault
// is unavailable.
type caCache struct {
	mount string
	every time.Duration

	mu   sync.Mutex
	held *generations
	due  time.Time // when the next reader refreshes
}

// generations are the CA certificates of a mount, the oldest first.
type generations struct {
	live    []*x509.Certificate // may issue certificates
	retired []*x509.Certificate // may no longer issue
}

// Roots implements nodeapi.Issuer. It returns the live generations of the node
// CA from a cache, also while Vault is unavailable. The caller must not change
// the slice.
func (c *Client) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	g, err := c.caCerts(ctx, c.nodeCAs)
	return g.live, err
}

// Retired implements nodeapi.Issuer. It returns the generations of the node CA
// that may no longer issue, cached like Roots. Generations whose issuer was
// deleted in Vault are not included.
func (c *Client) Retired(ctx context.Context) ([]*x509.Certificate, error) {
	g, err := c.caCerts(ctx, c.nodeCAs)
	return g.retired, err
}

// NodeCA returns Roots as PEM.
func (c *Client) NodeCA(ctx context.Context) (string, error) {
	certs, err := c.Roots(ctx)
	return certPEM(certs...), err
}

// ServerCA returns the CAs that verify the API's server certificate as PEM,
// cached like Roots.
func (c *Client) ServerCA(ctx context.Context) (string, error) {
	g, err := c.caCerts(ctx, c.apiCAs)
	return certPEM(g.live...), err
}

// caCerts returns a mount's CAs from the cache. When a refresh is due, one reader
// performs it; the others get the cached CAs.
func (c *Client) caCerts(ctx context.Context, cache *caCache) (generations, error) {
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
	fresh, err := c.readCAs(ctx, cache)
	if err != nil && held != nil {
		c.log.Warn("cannot refresh CA certificates; serving cached ones", "mount", cache.mount, "err", err)
		return *held, nil
	}
	return fresh, err
}

// readCAs reads a mount's CAs and fills the cache.
func (c *Client) readCAs(ctx context.Context, cache *caCache) (generations, error) {
	secret, err := c.call(ctx, "issuers", list(cache.mount+"/issuers"))
	if errors.Is(err, errAbsent) {
		return generations{}, schema.NewError(schema.KindInternal, "Vault at %s has no CA in %s", c.address, cache.mount).WithNext("gpuaas admin setup")
	}
	if err != nil {
		return generations{}, err
	}
	var response struct {
		Keys []string `json:"keys"`
	}
	if err := decode(secret, &response); err != nil {
		return generations{}, err
	}
	var read generations
	for _, id := range response.Keys {
		if err := c.readIssuer(ctx, cache.mount, id, &read); err != nil {
			return generations{}, err
		}
	}
	if len(read.live) == 0 {
		return generations{}, schema.NewError(schema.KindInternal, "no CA in %s of Vault at %s may issue certificates", cache.mount, c.address).WithNext("gpuaas admin setup")
	}
	// The fingerprint of a bundle is that of its first certificate.
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

// readIssuer appends an issuer's certificate to the generations. An issuer that
// may no longer issue is retired: an operator retires one by removing that usage.
func (c *Client) readIssuer(ctx context.Context, mount, id string, to *generations) error {
	secret, err := c.call(ctx, "issuers", get(mount+"/issuer/"+id))
	if errors.Is(err, errAbsent) {
		return nil // deleted after it was listed
	}
	if err != nil {
		return err
	}
	var response issuer
	if err := decode(secret, &response); err != nil {
		return err
	}
	certs, err := parseCerts(response.Certificate)
	if response.issues() {
		to.live = append(to.live, certs...)
	} else {
		to.retired = append(to.retired, certs...)
	}
	return err
}

// issuer is Vault's description of a CA.
type issuer struct {
	Name        string `json:"issuer_name"`
	Certificate string `json:"certificate"`
	Usage       string `json:"usage"`
}

func (i issuer) issues() bool {
	return slices.Contains(strings.Split(i.Usage, ","), "issuing-certificates")
}
