package vault

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Renewal of a lease key's delegation: at half of its life, and after a failure
// with these waits.
const (
	leaseKeyRetryMin = time.Second
	leaseKeyRetryMax = time.Minute
)

// Grants implements nodeapi.Grants: it signs what hand-overs promise with a key
// of this process, which is never stored. Vault delegates to it now and then, so
// that no hand-over waits for Vault.
type Grants struct {
	client *Client
	key    ed25519.PrivateKey
	id     string
	now    func() time.Time
	told   func(good bool)

	mu     sync.Mutex
	held   *delegation
	mended chan struct{} // closed when a delegation is good again
}

// delegation is a lease key as Vault signed it.
type delegation struct {
	doc      trust.LeaseKey
	envelope json.RawMessage
	by       string // id of the task key
}

// Grants makes this process's lease key and has Vault delegate to it, again and
// again until Close: at half of the delegation's life, when the active task key
// moves, and after each failure. told hears what each try came to; nil for none.
func (c *Client) Grants(told func(good bool)) (*Grants, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making a lease key")
	}
	if told == nil {
		told = func(bool) {}
	}
	sum := sha256.Sum256(public)
	g := &Grants{client: c, key: private, id: "lease-" + hex.EncodeToString(sum[:8]), now: time.Now, told: told,
		mended: make(chan struct{})}
	select { // the first delegation is by the key as it is now
	case <-c.moved:
	default:
	}
	c.spawn(g.keepFresh)
	return g, nil
}

func (g *Grants) keepFresh(ctx context.Context) {
	retry := leaseKeyRetryMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.client.moved:
		case <-timer.C:
		}
		err := g.delegate(ctx)
		g.told(err == nil)
		if err != nil {
			e := schema.AsError(err)
			g.client.log.Warn("no delegation for this replica's lease key; without one no task is handed over",
				"retry_in", retry, "err", err, "next", e.Next)
			timer.Reset(retry)
			retry = min(2*retry, leaseKeyRetryMax)
			continue
		}
		retry = leaseKeyRetryMin
		timer.Reset(trust.LeaseKeyLifetime / 2)
	}
}

// delegate has Vault sign a new delegation of the key.
func (g *Grants) delegate(ctx context.Context) error {
	now := g.now().UTC()
	doc := trust.LeaseKey{V: 1, Env: g.client.env, KeyID: g.id,
		Public:    base64.StdEncoding.EncodeToString(g.key.Public().(ed25519.PublicKey)),
		NotBefore: now.Add(-backdate), NotAfter: now.Add(trust.LeaseKeyLifetime)}
	envelope, by, err := g.client.SignLeaseKey(ctx, doc)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = &delegation{doc: doc, envelope: envelope, by: by}
	close(g.mended)
	g.mended = make(chan struct{})
	return nil
}

// Ready implements nodeapi.Grants. What it returns is closed at the next
// delegation, also when all is well.
func (g *Grants) Ready() (mended <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err = g.usable()
	return g.mended, err
}

// usable returns the delegation while it is good: within its time, and by a key
// that the nodes' set accepts. The caller holds the lock.
func (g *Grants) usable() (*delegation, error) {
	f, err := g.client.current()
	if err != nil {
		return nil, err
	}
	d := g.held
	if d == nil || !g.now().Before(d.doc.NotAfter) || !f.accepts(d.by) {
		return nil, schema.NewError(schema.KindServiceUnavailable, "this replica's lease key has no good delegation").
			WithReason("no_lease_key").WithNext("check Vault: vault status")
	}
	return d, nil
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
		return nil, nil, schema.Wrap(schema.KindInternal, err, "rendering a grant")
	}
	grant, err = seal(context.Background(), trust.LeasePayloadType, payload, localSigner{g.id, g.key})
	return grant, d.envelope, err
}

// localSigner signs with a key of this process.
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
