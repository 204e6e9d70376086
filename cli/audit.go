package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// auditPage is how many events one request asks for.
const auditPage = 500

func newAudit(e *env) *cobra.Command {
	var q adminclient.ListAuditParams
	var verify, acceptGap bool
	var v auditVerification
	var reason string
	var limit uint
	c := e.command("audit", "Read or verify the audit trail",
		`Prints the audit trail, oldest event first: actor, action, node, target, result and
reason. The target is the task, operation or resource of the event. Each node has its own
stream; events without a node are in the stream "system".

--verify reads every row of the streams, verifies their hash chains and compares them
with the heads of the streams and with the signed checkpoints, which each cover all
streams. If a row is missing, changed or out of order, the command names the first one
and exits with code 1. It prints the newest checkpoint: keep it outside of this
installation, and pass it as --known-checkpoint later. The admin API sends the keys of
the checkpoints; --checkpoint-keys uses those of a file instead, as
"vault read -format=json transit/keys/audit-ENV" prints them. Old rows are archived in
files and then deleted; --archive verifies these files as well.

--accept-gap ends the fault checkpoint_missing, for example after a restore of the
database lost a part of the trail, and the fault checkpoint_unverified.`,
		"  gpuaas audit --node gpu-17\n  gpuaas audit --verify\n  gpuaas audit -o json --limit 0\n  gpuaas audit --accept-gap --reason 'restored the dump of 11:40'",
		func(ctx context.Context, _ string) error {
			api := e.api()
			if acceptGap && (reason == "" || verify) {
				return usagef("gpuaas audit", "--accept-gap needs --reason, and cannot be used with --verify")
			}
			if !verify && (v.known != "" || v.keyFile != "" || v.archiveDir != "") {
				return usagef("gpuaas audit", "--known-checkpoint, --checkpoint-keys and --archive need --verify")
			}
			if acceptGap {
				return runAcceptAuditGap(ctx, e, api, reason)
			}
			if verify {
				v.api, v.node = api, q.Node
				return runAuditVerify(ctx, e, &v)
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
	c.Flags().StringVar(&v.known, "known-checkpoint", "", "with --verify, also expect the checkpoint with this `TEXT`")
	c.Flags().StringVar(&v.keyFile, "checkpoint-keys", "", "with --verify, `FILE` with the keys of the checkpoints")
	c.Flags().StringVar(&v.archiveDir, "archive", "", "with --verify, folder `DIR` with the archived events")
	c.Flags().BoolVar(&acceptGap, "accept-gap", false, "accept that checkpoints that nodes keep are missing")
	c.Flags().StringVar(&reason, "reason", "", "with --accept-gap, `TEXT` for the audit trail")
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
