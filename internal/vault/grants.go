package vault

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Grants implements nodeapi.Grants. It signs lease grants with a key of this
// process, which is never stored. Vault signs a delegation to that key from time
// to time, so that no dispatch waits for Vault.
type Grants struct {
	client *Client
	key    ed25519.PrivateKey
	id     string
	now    func() time.Time

	mu      sync.Mutex
	held    *delegation
	changed chan struct{} // closed at the next delegation
}

// delegation is a lease key's delegation, signed by Vault.
type delegation struct {
	doc      trust.LeaseKey
	envelope json.RawMessage
	by       string // ID of the task key
	// replaced is true after an early renewal was requested.
	replaced bool
}

// Grants creates this process's lease key and renews its delegation until Close:
// after half of the delegation's lifetime, when the active task key changes, and
// after each failure. observe is called with the outcome of each attempt.
func (c *Client) Grants(observe func(ok bool)) (*Grants, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "generating a lease key")
	}
	g := &Grants{client: c, key: private, id: "lease-" + schema.SHA256Hex(public)[:16], now: time.Now, changed: make(chan struct{})}
	select { // the first delegation already uses the current task key
	case <-c.keyChanged:
	default:
	}
	c.repeat(0, c.keyChanged, "cannot renew the delegation of this replica's lease key; once it expires, no task is dispatched",
		func(ctx context.Context) (time.Duration, error) {
			err := g.delegate(ctx)
			observe(err == nil)
			return trust.LeaseKeyLifetime / 2, err
		})
	return g, nil
}

// delegate has Vault sign a new delegation of the key.
func (g *Grants) delegate(ctx context.Context) error {
	now := g.now().UTC()
	doc := trust.LeaseKey{V: 1, Env: g.client.conf.Env, KeyID: g.id,
		Public:    g.key.Public().(ed25519.PublicKey),
		NotBefore: now.Add(-backdate), NotAfter: now.Add(trust.LeaseKeyLifetime)}
	payload, err := json.Marshal(doc)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding a lease key")
	}
	envelope, by, err := g.client.sign(ctx, "sign_lease_key", trust.LeaseKeyPayloadType, payload)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = &delegation{doc: doc, envelope: envelope, by: by}
	close(g.changed)
	g.changed = make(chan struct{})
	return nil
}

// Ready implements nodeapi.Grants. changed is closed at the next delegation,
// whether or not err is nil.
func (g *Grants) Ready() (changed <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err = g.usable()
	return g.changed, err
}

// usable returns the delegation if it is valid: within its time, and signed by a
// key that the nodes' verifier set accepts. The caller holds the lock.
func (g *Grants) usable() (*delegation, error) {
	f, err := g.client.current()
	if err != nil {
		return nil, err
	}
	d := g.held
	g.replaceMisdated(d)
	if d == nil || g.now().Before(d.doc.NotBefore) || !g.now().Before(d.doc.NotAfter) ||
		!slices.ContainsFunc(f.set.Accepted(), func(k trust.VerifierKey) bool { return k.KeyID == d.by }) {
		return nil, unavailable(ReasonNoLeaseKey, "check Vault: vault status", "this replica's lease key has no valid delegation")
	}
	return d, nil
}

// replaceMisdated requests a new delegation if this machine's clock was corrected since, so that
// the time of the held one is over or has not begun. The caller holds the lock.
func (g *Grants) replaceMisdated(d *delegation) {
	now := g.now()
	if d == nil || d.replaced || !now.Before(d.doc.NotBefore) && now.Before(d.doc.NotAfter) {
		return
	}
	d.replaced = true // after a failure, the renewal itself is repeated
	select {
	case g.client.keyChanged <- struct{}{}:
	default:
	}
}

// Sign implements nodeapi.Grants.
func (g *Grants) Sign(t task.Grant) (grant, key json.RawMessage, err error) {
	g.mu.Lock()
	d, err := g.usable()
	g.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	payload, err := json.Marshal(t)
	if err != nil {
		return nil, nil, schema.Wrap(schema.KindInternal, err, "encoding a lease grant")
	}
	grant, err = seal(context.Background(), trust.LeasePayloadType, payload, localSigner{g.id, g.key})
	return grant, d.envelope, err
}

// localSigner signs with the key of this process.
type localSigner struct {
	id  string
	key ed25519.PrivateKey
}

var _ dsse.Signer = localSigner{}

// KeyID implements dsse.Signer.
func (s localSigner) KeyID() (string, error) { return s.id, nil }

// Sign implements dsse.Signer.
func (s localSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.key, data), nil
}
