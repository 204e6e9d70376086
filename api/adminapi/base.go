package adminapi

import (
	"context"
	"log/slog"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// base is the part that the handlers of all resources share.
type base struct{ *Config }

// find reads the node that the path names by id or host name.
func (b base) find(c *call) (wire.NodeView, error) {
	node, err := b.named(c.Context(), c.PathValue("node"))
	if err == nil {
		edge.Annotate(c.Context(), slog.String("node_id", node.ID))
	}
	return node, err
}

// named reads a node by id or host name.
func (b base) named(ctx context.Context, name string) (wire.NodeView, error) {
	if !schema.IsID(name) && !validHost(name) {
		return wire.NodeView{}, schema.Errorf(schema.KindNotFound, "no such node")
	}
	return b.Views.Node(ctx, name)
}

// streamOf returns the audit stream of a node named by id or host name.
func (b base) streamOf(ctx context.Context, name string) (string, error) {
	if name == audit.SystemStream || schema.IsID(name) {
		return name, nil
	}
	node, err := b.named(ctx, name)
	return node.ID, err
}

// id reads an id from the path and adds it to the request's log line. A text that
// is not an id names nothing.
func (c *call) id(name string) (string, error) {
	id := c.PathValue(name)
	if !schema.IsID(id) {
		return "", schema.NewError(schema.KindNotFound, "%s: no such id", name)
	}
	edge.Annotate(c.Context(), slog.String(name, id))
	return id, nil
}

// use is one use of an idempotency key.
type use struct {
	// key is empty for a request without one.
	key string
	// result is the result of the first use, empty until that has completed.
	result string
	// repeated is true if the key was used before. With an empty result the first
	// use may have had its effect: the process may have died before it kept the
	// result.
	repeated bool
}

// once runs do for a request and keeps the result under the request's idempotency
// key. If the first use of the key has no result, do runs again, so two runs of do
// must have the effect of one. A use that fails is forgotten, so that the client
// can retry.
func (b base) once(c *call, do func(use) (result string, err error)) error {
	ctx, scope := c.Context(), c.URL.Path
	key, err := c.idempotencyKey()
	if err != nil {
		return err
	}
	u := use{key: key}
	if key != "" {
		var fresh bool
		if u.result, fresh, err = b.Views.UseKey(ctx, scope, key, c.by.Actor); err != nil {
			return err
		}
		u.repeated = !fresh
	}
	result, err := do(u)
	switch {
	case key == "" || u.result != "" || u.repeated && err != nil:
		return err
	case err == nil:
		return b.Views.KeepResult(ctx, scope, key, result)
	}
	if drop := b.Views.DropKey(ctx, scope, key); drop != nil {
		b.Log.Warn("the idempotency key of a failed request remains in use", slog.String("scope", scope), slog.Any("err", drop))
	}
	return err
}

// idempotencyKey reads the Idempotency-Key header; empty for none.
func (c *call) idempotencyKey() (string, error) {
	values := c.Header.Values(wire.HeaderIdempotencyKey)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || values[0] == "" || !plainText(values[0], wire.MaxIdempotencyKey):
		return "", schema.NewError(schema.KindInvalidRequest, "%s must be given once, as one line of at most 128 characters", wire.HeaderIdempotencyKey).
			WithReason("bad_idempotency_key")
	}
	return values[0], nil
}
