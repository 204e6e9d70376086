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
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// caCache caches the CA certificates of a mount.
type caCache struct {
	mount string
	every time.Duration

	held    atomic.Pointer[generations]
	refresh sync.Once // starts the refreshes after the first successful read
	changed chan struct{}
}

// generations are the CA certificates of a mount, the oldest first.
type generations struct {
	live    []*x509.Certificate // may issue certificates
	retired []*x509.Certificate // may no longer issue
}

// Roots implements nodeapi.Issuer. It returns the live generations of the node
// CA from a cache, even while Vault is unavailable. The caller must not change
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
	return trust.EncodeCertificates(certs...), err
}

// ServerCA returns the CAs that verify the API's server certificate as PEM,
// cached like Roots.
func (c *Client) ServerCA(ctx context.Context) (string, error) {
	g, err := c.caCerts(ctx, c.apiCAs)
	return trust.EncodeCertificates(g.live...), err
}

// caCerts returns a mount's CAs from the cache, which is refreshed in the
// background.
func (c *Client) caCerts(ctx context.Context, cache *caCache) (generations, error) {
	if held := cache.held.Load(); held != nil {
		return *held, nil
	}
	read, err := c.readCAs(ctx, cache)
	if err == nil {
		cache.keepFresh(c, cache.every)
	}
	return read, err
}

// RereadNodeCAs makes the client read the node CAs again soon.
func (c *Client) RereadNodeCAs() {
	select { // one notification is enough
	case c.nodeCAs.changed <- struct{}{}:
	default:
	}
}

// keepFresh starts the refreshes of a cache that was filled, once.
func (cache *caCache) keepFresh(c *Client, first time.Duration) {
	cache.refresh.Do(func() {
		c.repeat(first, cache.changed, "cannot refresh the CA certificates of "+cache.mount+"; serving cached ones",
			func(ctx context.Context) (time.Duration, error) {
				_, err := c.readCAs(ctx, cache)
				return cache.every, err
			})
	})
}

// readCAs reads a mount's CAs and fills the cache. An operator retires a generation by
// removing the usage issuing-certificates from its issuer.
func (c *Client) readCAs(ctx context.Context, cache *caCache) (generations, error) {
	var read generations
	issuers, err := fetch[issuerList](ctx, c, "issuers", list(cache.mount+"/issuers"))
	if err != nil && !errors.Is(err, errAbsent) {
		return read, err
	}
	for _, id := range issuers.Keys {
		i, err := fetch[issuer](ctx, c, "issuers", get(cache.mount+"/issuer/"+id))
		if errors.Is(err, errAbsent) {
			continue // deleted after it was listed
		}
		if err != nil {
			return generations{}, err
		}
		certs, err := parseCerts(i.Certificate)
		if err != nil {
			return generations{}, err
		}
		if i.live() {
			read.live = append(read.live, certs...)
		} else {
			read.retired = append(read.retired, certs...)
		}
	}
	if len(read.live) == 0 {
		return generations{}, schema.NewError(schema.KindInternal, "no CA in %s of Vault at %s may issue certificates", cache.mount, c.address).WithNext("gpuaas admin setup")
	}
	// The fingerprint of a bundle is that of its first certificate.
	oldestFirst(read.live)
	oldestFirst(read.retired)
	cache.held.Store(&read)
	c.keep()
	return read, nil
}

func oldestFirst(certs []*x509.Certificate) {
	slices.SortFunc(certs, func(a, b *x509.Certificate) int {
		return cmp.Or(a.NotBefore.Compare(b.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
}

// live reports whether the CA may issue certificates.
func (i issuer) live() bool {
	return slices.Contains(strings.Split(i.Usage, ","), "issuing-certificates")
}

// issuerList has the IDs of a mount's CAs.
type issuerList struct {
	Keys []string `json:"keys"`
}

// issuer is Vault's description of a CA.
type issuer struct {
	ID          string `json:"issuer_id"`
	Name        string `json:"issuer_name"`
	Certificate string `json:"certificate"`
	Usage       string `json:"usage"`
}
