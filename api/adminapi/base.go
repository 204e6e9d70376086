package adminapi

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// base is the part that the handlers of all resources share.
type base struct{ *Config }

// authorize identifies the subject of a request and checks that it may do what one of the roles may.
func (b base) authorize(r *http.Request, roles ...Role) (Subject, error) {
	subject, err := b.Auth.Authenticate(r)
	if err != nil {
		return subject, err
	}
	edge.Annotate(r.Context(), slog.String("actor", subject.Name))
	allowed := func(have Role) bool { return slices.ContainsFunc(roles, have.Allows) }
	if !allowed(subject.Role) {
		need := text.Or(slices.DeleteFunc(trust.Roles(), func(r Role) bool { return !allowed(r) }))
		return subject, schema.NewError(schema.KindForbidden, "%s has the role %s; this needs the role %s", subject.Name, subject.Role, need).
			WithReason("role").WithNext("use a token of a subject with the role " + need)
	}
	return subject, nil
}

// find reads the node that the path names.
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
		return wire.NodeView{}, schema.NewError(schema.KindNotFound, "no such node").WithNext("gpuaas node list")
	}
	return b.Nodes.Node(ctx, name)
}

// version shows the build of this replica.
func (b base) version(c *call) (any, error) { return version.Read(), b.query(c).check() }

// streamOf returns the audit stream of a node named by id or host name.
func (b base) streamOf(ctx context.Context, name string) (string, error) {
	if name == audit.SystemStream || schema.IsID(name) {
		return name, nil
	}
	node, err := b.named(ctx, name)
	return node.ID, err
}

// id reads an id from the path and adds it to the request's log line. A text that is
// not an id names nothing; list is the command that lists the ids.
func (c *call) id(name, list string) (string, error) {
	id := c.PathValue(name)
	if !schema.IsID(id) {
		return "", schema.NewError(schema.KindNotFound, "no such %s: an ID is a UUID", strings.TrimSuffix(name, "_id")).WithNext(list)
	}
	edge.Annotate(c.Context(), slog.String(name, id))
	return id, nil
}

// idempotencyKey returns the Idempotency-Key of a request; empty without one.
func idempotencyKey(h http.Header) (string, error) {
	values := h.Values(wire.HeaderIdempotencyKey)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || values[0] == "" || !text.IsLine(values[0], wire.MaxIdempotencyKey):
		return "", schema.NewError(schema.KindInvalidRequest, "%s must be given once, as one line of at most 128 characters", wire.HeaderIdempotencyKey).
			WithReason("bad_idempotency_key")
	}
	return values[0], nil
}

// keyInUse rejects a request whose idempotency key belongs to another request.
func keyInUse(of string) error {
	return schema.NewError(schema.KindKeyInUse, "the idempotency key belongs to a request with other content: %s", of).
		WithReason("key_in_use").WithNext("use a new " + wire.HeaderIdempotencyKey + " for a new request")
}

// once carries out a request. If the request has an idempotency key, once first calls
// earlier, which returns the result of an earlier request with the key, or KindNotFound.
func once[T any](key string, earlier, now func() (T, error)) (T, error) {
	if key == "" {
		return now()
	}
	first, err := earlier()
	if schema.KindOf(err) != schema.KindNotFound {
		return first, err
	}
	v, err := now()
	if err == nil {
		return v, nil
	}
	// A request with the same key may have been carried out in the meantime.
	if first, lookup := earlier(); lookup == nil || schema.KindOf(lookup) == schema.KindKeyInUse {
		return first, lookup
	}
	return v, err
}

// withNext returns the error with a next step, if it has none.
func withNext(err error, next string) error {
	e := *schema.AsError(err)
	e.Next = cmp.Or(e.Next, next)
	return &e
}
