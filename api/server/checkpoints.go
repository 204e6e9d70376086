package server

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
)

const (
	// checkpointsEvery is the interval between two reads of the newest checkpoint.
	checkpointsEvery = 10 * time.Second
	// maxComparedCheckpoints bounds the comparisons that are remembered.
	maxComparedCheckpoints = 10_000
)

// checkpointStore reads checkpoints and records those that the database lost.
type checkpointStore interface {
	Newest(ctx context.Context) (audit.Checkpoint, error)
	Has(ctx context.Context, number int64, hash string) (bool, error)
	RecordMissing(ctx context.Context, nodeID string, c audit.Checkpoint) error
}

// checkpoints implements nodeapi.Checkpoints. All nodes send the same few checkpoints, so
// it compares each one with the database once in checkpointsEvery, and only if the
// checkpoint key signed it.
type checkpoints struct {
	store checkpointStore
	keys  func(context.Context) (map[string]ed25519.PublicKey, error)
	env   string
	log   *slog.Logger

	mu       sync.Mutex
	newest   string
	compared map[string]bool              // the texts that were compared since the last refresh
	trusted  map[string]ed25519.PublicKey // the keys in Vault, by key ID
}

// run reads the newest checkpoint until ctx ends, and returns nil then. It logs a fault once.
func (c *checkpoints) run(ctx context.Context) error {
	tick := time.NewTicker(checkpointsEvery)
	defer tick.Stop()
	failing := false
	for {
		err := c.refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn("cannot read the newest audit checkpoint", slog.Any("err", err))
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *checkpoints) refresh(ctx context.Context) error {
	newest, err := c.store.Newest(ctx)
	if err != nil {
		return err
	}
	trusted := c.trusted // which only this goroutine writes
	if trusted[newest.KeyID] == nil {
		if trusted, err = c.keys(ctx); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trusted, c.newest, c.compared = trusted, "", map[string]bool{} // what was stored may be gone
	if newest.Number > 0 {
		c.newest = newest.String()
	}
	return nil
}

// Newest implements nodeapi.Checkpoints.
func (c *checkpoints) Newest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// Compare implements nodeapi.Checkpoints.
func (c *checkpoints) Compare(ctx context.Context, nodeID, text string) {
	if c.known(text) {
		return
	}
	p, err := audit.ParseCheckpoint(text)
	if err != nil || !c.signed(p) {
		c.log.Debug("a node sent an audit checkpoint that no known key signed", slog.String("node_id", nodeID))
		return
	}
	has, err := c.store.Has(ctx, p.Number, p.Hash)
	if err == nil && !has {
		c.log.Error("a node keeps an audit checkpoint that the database does not have", slog.String("node_id", nodeID), slog.String("checkpoint", text))
		err = c.store.RecordMissing(ctx, nodeID, p)
	}
	if err != nil {
		c.log.Warn("cannot compare an audit checkpoint", slog.String("node_id", nodeID), slog.Any("err", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.compared) < maxComparedCheckpoints {
		c.compared[text] = true
	}
}

// known reports whether the text needs no comparison.
func (c *checkpoints) known(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return text == c.newest || c.compared[text]
}

// signed reports whether a key of Vault signed the checkpoint.
func (c *checkpoints) signed(p audit.Checkpoint) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.Verify(c.env, c.trusted)
}
