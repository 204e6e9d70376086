package client

import (
	"context"
	"iter"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The filters of lists. A nil field does not filter. Limit is the size of a page, 100 by default and
// at most 1000; PageToken is the page to begin with.
type (
	// NodeFilter filters nodes.
	NodeFilter = adminclient.ListNodesParams
	// OperationFilter filters operations.
	OperationFilter = adminclient.ListOperationsParams
	// TaskFilter filters node tasks.
	TaskFilter = adminclient.ListTasksParams
	// AuditFilter filters audit events.
	AuditFilter = adminclient.ListAuditParams
	// SKUFilter filters SKUs.
	SKUFilter = adminclient.ListSKUsParams
)

// Nodes returns the nodes in order of host name. It reads a page when the loop needs it. An error is
// the last value.
func (c *Client) Nodes(ctx context.Context, f NodeFilter) iter.Seq2[wire.NodeView, error] {
	return Pages(f.PageToken, func(token *string) ([]wire.NodeView, string, error) {
		f.PageToken = token
		l, err := Decode[wire.NodeList](c.api.ListNodes(ctx, &f))
		return l.Nodes, l.NextPageToken, err
	})
}

// Operations returns operations, newest first, as Nodes does.
func (c *Client) Operations(ctx context.Context, f OperationFilter) iter.Seq2[wire.OperationSummary, error] {
	return Pages(f.PageToken, func(token *string) ([]wire.OperationSummary, string, error) {
		f.PageToken = token
		l, err := Decode[wire.OperationList](c.api.ListOperations(ctx, &f))
		return l.Operations, l.NextPageToken, err
	})
}

// Tasks returns node tasks, newest first and without their output, as Nodes does.
func (c *Client) Tasks(ctx context.Context, f TaskFilter) iter.Seq2[wire.TaskView, error] {
	return Pages(f.PageToken, func(token *string) ([]wire.TaskView, string, error) {
		f.PageToken = token
		l, err := Decode[wire.TaskList](c.api.ListTasks(ctx, &f))
		return l.Tasks, l.NextPageToken, err
	})
}

// Audit returns the events of the audit trail, newest first, as Nodes does.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[audit.Row, error] {
	return Pages(f.PageToken, func(token *string) ([]audit.Row, string, error) {
		f.PageToken = token
		l, err := Decode[wire.AuditPage](c.api.ListAudit(ctx, &f))
		return l.Events, l.NextPageToken, err
	})
}

// SKUs returns the SKUs in order of name, as Nodes does.
func (c *Client) SKUs(ctx context.Context, f SKUFilter) iter.Seq2[inventory.SKU, error] {
	return Pages(f.PageToken, func(token *string) ([]inventory.SKU, string, error) {
		f.PageToken = token
		l, err := Decode[inventory.SKUList](c.api.ListSKUs(ctx, &f))
		return l.SKUs, l.NextPageToken, err
	})
}

// Pages returns the rows of a list of the generated client. get reads the page of a token, nil for
// the first one, and returns the token of the next page, empty for none. A page may be read again: a
// loop over the result starts with the first page each time.
func Pages[T any](first *string, get func(token *string) (rows []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for token := first; ; {
			rows, next, err := get(token)
			if err != nil {
				yield(none, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			if token != nil && *token == next {
				yield(none, schema.NewError(schema.KindInternal, "the admin API returned the same page twice"))
				return
			}
			token = &next
		}
	}
}
