package client

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// keyOfCall is the key of a context: the idempotency key.
type keyOfCall struct{}

// WithIdempotencyKey returns a context whose call has the idempotency key, one line of at most 128
// characters. A call with a key that was used before returns the result of the first one. Use a key
// for one call only.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfCall{}, key)
}

// keyed returns the context with a new idempotency key, unless it has one.
func keyed(ctx context.Context) context.Context {
	if _, ok := ctx.Value(keyOfCall{}).(string); ok {
		return ctx
	}
	return WithIdempotencyKey(ctx, schema.NewID())
}

// ServerVersion returns the version of the server.
func (c *Client) ServerVersion(ctx context.Context) (version.Build, error) {
	return Decode[version.Build](c.api.GetVersion(ctx, nil))
}

// Node returns a node. The error is not_found for a node that was never registered; a removed node is
// found by its ID.
func (c *Client) Node(ctx context.Context, node string) (wire.NodeView, error) {
	return Decode[wire.NodeView](c.api.GetNode(ctx, node, nil))
}

// RegisterNode adds a node to the inventory.
func (c *Client) RegisterNode(ctx context.Context, r wire.RegisterNodeRequest) (wire.NodeView, error) {
	return Decode[wire.NodeView](c.api.RegisterNode(keyed(ctx), nil, r))
}

// SetNode changes registered properties of a node. Fields that are left out stay as they are.
func (c *Client) SetNode(ctx context.Context, node string, change wire.NodeChange) (wire.NodeView, error) {
	return Decode[wire.NodeView](c.api.SetNode(ctx, node, nil, change))
}

// BootstrapScript returns a script that installs the agent on the node's host. It starts the
// enrollment if none is open, and voids the token of an earlier script. The script is a secret.
func (c *Client) BootstrapScript(ctx context.Context, node string, r wire.BootstrapScriptRequest) (wire.BootstrapScriptResponse, error) {
	return Decode[wire.BootstrapScriptResponse](c.api.MakeBootstrapScript(keyed(ctx), node, nil, r))
}

// Start starts a lifecycle action of a node as an operation, and returns when the node is claimed.
// Follow it with WaitOperation.
func (c *Client) Start(ctx context.Context, node string, a lifecycle.Action, r wire.LifecycleRequest) (wire.LifecycleResponse, error) {
	return Decode[wire.LifecycleResponse](c.api.StartOperation(keyed(ctx), node, a, nil, r))
}

// Operation returns the status of an operation.
func (c *Client) Operation(ctx context.Context, id string) (wire.OperationView, error) {
	return Decode[wire.OperationView](c.api.GetOperation(ctx, id, nil))
}

// Decide sends a decision about a parked operation and returns its status. Set Phase and StuckSince
// of the request to those of the park that the decision is about: if the operation has left it, the
// error is decision_outdated.
func (c *Client) Decide(ctx context.Context, id string, d lifecycle.Decision, r wire.ResolveOperation) (wire.OperationView, error) {
	return Decode[wire.OperationView](c.api.DecideOperation(keyed(ctx), id, d, nil, r))
}

// SKU returns an SKU by its name.
func (c *Client) SKU(ctx context.Context, name string) (inventory.SKU, error) {
	return Decode[inventory.SKU](c.api.GetSKU(ctx, name, nil))
}

// AddSKU adds an SKU. The same SKU again is accepted; one with other content is already_exists.
func (c *Client) AddSKU(ctx context.Context, sku inventory.NewSKU) (inventory.SKU, error) {
	return Decode[inventory.SKU](c.api.AddSKU(ctx, nil, sku))
}

// DeactivateSKU makes an SKU unavailable for new nodes. Nodes that have it keep it.
func (c *Client) DeactivateSKU(ctx context.Context, name string, r inventory.SKUDeactivation) (inventory.SKU, error) {
	return Decode[inventory.SKU](c.api.DeactivateSKU(ctx, name, nil, r))
}

// waitTimes are the pauses between the reads of an operation: the first one, doubled up to the last.
type waitTimes struct{ first, last time.Duration }

func defaultWait() waitTimes { return waitTimes{250 * time.Millisecond, 5 * time.Second} }

// WaitOperation waits until the operation ends or is parked, and returns its status. A parked
// operation waits for a decision, which Operation.Stuck lists: see Decide. An abandoned operation has
// lost its workflow run.
//
// If the context ends first, WaitOperation returns the last status that it read, with the context's
// error. The operation continues.
func (c *Client) WaitOperation(ctx context.Context, id string) (wire.OperationView, error) {
	var last wire.OperationView
	for pause := c.wait.first; ; pause = min(2*pause, c.wait.last) {
		v, err := c.Operation(ctx, id)
		if err != nil {
			return last, err
		}
		last = v
		switch s := v.Operation.Status; {
		case s.Ended(), s == lifecycle.OperationParked, s == lifecycle.OperationAbandoned:
			return v, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last, ctx.Err()
		case <-timer.C:
		}
	}
}
