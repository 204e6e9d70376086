package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// auditPage is how many events one request asks for.
const auditPage = 500

func newAudit(e *env) *cobra.Command {
	var q adminclient.ListAuditParams
	var verify bool
	var limit uint
	c := e.command("audit", "Read or verify the audit trail",
		`Prints the audit trail, oldest event first: actor, action, node, target, result and
reason. The target is the task, operation or resource of the event. Each node has its own
stream; events without a node are in the stream "system".

--verify reads every row of the streams and verifies their hash chains. If a row is
missing, changed or out of order, the command names the first one and exits with code 1.`,
		"  gpuaas audit --node gpu-17\n  gpuaas audit --verify\n  gpuaas audit -o json --limit 0",
		func(ctx context.Context, _ string) error {
			api := e.api()
			if verify {
				return runAuditVerify(ctx, e, api, q.Node)
			}
			events, err := listAudit(ctx, api, q, limit)
			if err != nil {
				return err
			}
			slices.Reverse(events)
			if limit > 0 && len(events) == int(limit) {
				e.message("the newest %d events; --limit 0 prints all", limit)
			}
			return printList(e.console, listing[audit.Row]{
				object: map[string][]audit.Row{"events": events}, rows: events, empty: "no event matches",
				header: []string{"AT", "ACTOR", "VIA", "ACTION", "NODE", "TARGET", "RESULT", "REASON", "STREAM", "OPERATION", "CORRELATION ID"},
				wide:   3, cells: auditCells, name: eventName,
			})
		})
	e.addNode(c, &q.Node, "only the events of `NODE`, or of the stream system")
	addSince(c, &q.Since, "events")
	addFilter[string](c, &q.Actor, "actor", "only events of these `ACTORS`")
	addFilter(c, &q.Action, "action", "only these `ACTIONS`, for example nodes.drain", audit.Actions()...)
	addFilter(c, &q.Result, "result", "only these `RESULTS`", audit.Results()...)
	c.Flags().BoolVar(&verify, "verify", false, "verify the hash chains instead of printing events")
	c.Flags().UintVar(&limit, "limit", 200, "print the newest N events; 0 for all")
	return c
}

// auditCells is the row of an event, with the node's host name for its id. The row of a
// decision names the decision.
func auditCells(v audit.Row) []string {
	action, target := v.Action, v.Target
	if d := v.Detail["decision"]; d != "" {
		action += " " + d
	}
	if target == v.Stream {
		target = ""
	}
	actor := v.Actor
	if v.Host != "" {
		actor = strings.Replace(actor, v.Stream, v.Host, 1)
	}
	return []string{v.At.UTC().Format(time.RFC3339), actor, dash(v.Via), action, dash(v.Host), dash(target), v.Result, dash(v.Reason),
		v.Stream, dash(v.OperationID), dash(v.CorrelationID)}
}

// auditResult is the output of audit --verify.
type auditResult struct {
	Verified bool   `json:"verified"`
	Rows     int    `json:"rows"` // valid rows before the fault
	Streams  int    `json:"streams"`
	Fault    string `json:"fault,omitempty"`
}

func runAuditVerify(ctx context.Context, e *env, api *adminclient.Client, node *string) error {
	streams, err := auditStreams(ctx, api, node)
	if err != nil {
		return err
	}
	result := auditResult{Verified: true}
	for _, s := range streams {
		result.Streams++
		if err := result.verify(ctx, api, s); err != nil {
			return err
		}
		if !result.Verified {
			break
		}
	}
	err = e.print(result, func(w io.Writer) {
		if result.Verified {
			fmt.Fprintf(w, "verified %s of %s: no faults found\n", count(result.Rows, "row"), count(result.Streams, "stream"))
			return
		}
		row(w, fmt.Sprintf("FAULT after %s of %s: %s", count(result.Rows, "valid row"), count(result.Streams, "stream"), result.Fault))
	})
	if err == nil && !result.Verified {
		err = &exitError{schema.ExitFailed, []string{"the audit trail was changed or is incomplete: do not change the database, and investigate"}}
	}
	return err
}

// auditStreams is the stream of one node, or every stream.
func auditStreams(ctx context.Context, api *adminclient.Client, node *string) ([]string, error) {
	switch {
	case node == nil:
		return pages(0, func(size *int, token *string) ([]string, string, error) {
			list, err := decode[wire.AuditStreamList](api.ListAuditStreams(ctx, &adminclient.ListAuditStreamsParams{Limit: size, PageToken: token}))
			return list.Streams, list.NextPageToken, err
		})
	case *node == audit.SystemStream || schema.IsID(*node):
		return []string{*node}, nil
	}
	view, err := decode[wire.NodeView](api.GetNode(ctx, *node, nil))
	return []string{view.ID}, err
}

// verify checks the chain of one stream page by page up to the first fault.
func (r *auditResult) verify(ctx context.Context, api *adminclient.Client, stream string) error {
	var last *audit.Event
	after, limit := int64(0), auditPage
	for {
		page, err := decode[wire.AuditStreamPage](api.ReadAuditStream(ctx, stream, &adminclient.ReadAuditStreamParams{After: &after, Limit: &limit}))
		if err != nil {
			return err
		}
		for _, event := range page.Events {
			if event.Stream != stream {
				r.Fault = fmt.Sprintf("audit stream %s: row %d belongs to stream %s", stream, event.Seq, event.Stream)
			} else if err := audit.VerifyChain(last, []audit.Event{event}); err != nil {
				r.Fault = err.Error()
			}
			if r.Verified = r.Fault == ""; !r.Verified {
				return nil
			}
			last = &event
			r.Rows++
		}
		if !page.More || len(page.Events) == 0 {
			return nil
		}
		if last.Seq <= after {
			return schema.NewError(schema.KindInternal, "audit stream %s: the admin API returned row %d again after row %d", stream, last.Seq, after)
		}
		after = last.Seq
	}
}
