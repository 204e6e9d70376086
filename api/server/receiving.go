package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// receiving is the record that this process receives the requests of nodes.
type receiving struct {
	vault     *vault.Client
	inventory *store.Inventory
	log       *slog.Logger
}

// record repeats the record until ctx ends.
func (r receiving) record(ctx context.Context) error {
	replica, tick := schema.NewID(), time.NewTicker(store.ReceivingEvery)
	defer tick.Stop()
	for {
		if err := r.inventory.RecordReceiving(ctx, replica, r.acceptedCAs(ctx)); err != nil && ctx.Err() == nil {
			r.log.Warn("cannot record that this process receives requests; no node becomes silent and no task lost meanwhile",
				slog.Any("err", err), slog.Duration("retry_in", store.ReceivingEvery))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// acceptedCAs returns the trust.BundleDigest of the node CAs that this process accepts, "" if it
// has not read them.
func (r receiving) acceptedCAs(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, store.ReceivingEvery/2) // the first call reads them
	defer cancel()
	cas, err := r.vault.Roots(ctx)
	if err != nil {
		return ""
	}
	return trust.BundleDigest(cas...)
}

// followCAs reads the node CAs again after each notification, until ctx ends.
func followCAs(ctx context.Context, client *vault.Client, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			client.RereadNodeCAs()
		}
	}
}
