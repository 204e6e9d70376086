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
	return b.Nodes.Node(ctx, name)
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

// keyInUse rejects a request whose idempotency key belongs to another request.
func keyInUse(of string) error {
	return schema.NewError(schema.KindInvalidRequest, "the idempotency key belongs to a request with other content: %s", of).
		WithReason("key_in_use").WithNext("use a new key for a new request")
}
