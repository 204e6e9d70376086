package server

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
)

const (
	// checkpointsEvery is the interval between two reads of the newest checkpoint.
	checkpointsEvery = 10 * time.Second
	// maxComparedCheckpoints bounds the comparisons, and the unsigned texts, that are remembered.
	maxComparedCheckpoints = 10_000
)

// checkpointStore reads checkpoints and records those that the database lost.
type checkpointStore interface {
	Newest(ctx context.Context) (audit.Checkpoint, error)
	Has(ctx context.Context, number int64, hash string) (bool, error)
	RecordMissing(ctx context.Context, nodeID string, c audit.Checkpoint) error
	RecordUnverified(ctx context.Context, nodeID string, c audit.Checkpoint) error
}

// checkpoints implements nodeapi.Checkpoints. All nodes send the same few checkpoints, so
// it compares each one with the database once in checkpointsEvery. It records those that
// the checkpoint key did not sign as well.
type checkpoints struct {
	store checkpointStore
	keys  func(context.Context) (map[string]ed25519.PublicKey, error)
	env   string
	log   *slog.Logger

	mu       sync.Mutex
	newest   string
	compared map[string]bool              // the texts that were compared since the last refresh; true for the unsigned
	unsigned map[string]bool              // the unsigned texts; true once the keys were read again
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
			c.log.Warn("cannot refresh the newest audit checkpoint and the keys", slog.Any("err", err))
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// refresh reads the newest checkpoint and, if they are needed, the keys. A failure of one does
// not keep the other from being refreshed: Vault may be sealed for longer than nodes should
// keep an old checkpoint.
func (c *checkpoints) refresh(ctx context.Context) error {
	newest, err := c.store.Newest(ctx)
	if err == nil {
		c.setNewest(newest)
	}
	doubted := c.doubted()
	if needed := err == nil && c.trusted[newest.KeyID] == nil; needed || len(doubted) > 0 { // only this goroutine writes trusted
		err = errors.Join(err, c.readKeys(ctx, doubted))
	}
	return err
}

func (c *checkpoints) setNewest(newest audit.Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest, c.compared = "", map[string]bool{} // what was stored may be gone
	if newest.Number > 0 {
		c.newest = newest.String()
	}
}

// readKeys reads the keys. Those of the doubted texts that are still unsigned are so finally.
func (c *checkpoints) readKeys(ctx context.Context, doubted []string) error {
	trusted, err := c.keys(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trusted = trusted
	for _, text := range doubted {
		c.unsigned[text] = true
	}
	return nil
}

// doubted are the texts that are unsigned by the keys as last read.
func (c *checkpoints) doubted() (texts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for text, final := range c.unsigned {
		if !final {
			texts = append(texts, text)
		}
	}
	return texts
}

// Newest implements nodeapi.Checkpoints.
func (c *checkpoints) Newest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// Compare implements nodeapi.Checkpoints.
func (c *checkpoints) Compare(ctx context.Context, nodeID, text string) (unsigned bool) {
	unsigned, known := c.known(text)
	if known {
		return unsigned
	}
	p, err := audit.ParseCheckpoint(text)
	if err != nil || p.Env != c.env { // which the agent does not keep
		c.log.Debug("a node sent a text that is no audit checkpoint", slog.String("node_id", nodeID))
		return false
	}
	signed, final := c.verify(p, text)
	switch {
	case signed:
		err = c.compare(ctx, nodeID, p)
	case final:
		err = c.store.RecordUnverified(ctx, nodeID, p)
	default:
		return false // until the keys were read again
	}
	if err != nil {
		c.log.Warn("cannot compare an audit checkpoint", slog.String("node_id", nodeID), slog.Any("err", err))
		return !signed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.compared) < maxComparedCheckpoints {
		c.compared[text] = !signed
	}
	return !signed
}

// compare records the checkpoint if the database does not have it.
func (c *checkpoints) compare(ctx context.Context, nodeID string, p audit.Checkpoint) error {
	has, err := c.store.Has(ctx, p.Number, p.Hash)
	if err != nil || has {
		return err
	}
	c.log.Error("a node keeps an audit checkpoint that the database does not have", slog.String("node_id", nodeID), slog.String("checkpoint", p.String()))
	return c.store.RecordMissing(ctx, nodeID, p)
}

// known reports whether the text needs no comparison, and whether it is unsigned then.
func (c *checkpoints) known(text string) (unsigned, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	unsigned, known = c.compared[text]
	return unsigned, known || text == c.newest
}

// verify reports whether a key of Vault signed the checkpoint. If not, that is final only
// if the keys were read after the text was first seen: the key may be newer than those.
func (c *checkpoints) verify(p audit.Checkpoint, text string) (signed, final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Verify(c.env, c.trusted) {
		return true, true
	}
	if len(c.unsigned) >= maxComparedCheckpoints {
		clear(c.unsigned)
	}
	final = c.unsigned[text]
	c.unsigned[text] = final
	return false, final
}
