package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// historyEntry is an operation of a node, or a decision or change that a person made.
type historyEntry struct {
	ID          string     `json:"id"` // of the operation, or stream/seq of the audit event
	At          time.Time  `json:"at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	Action      string     `json:"action"`
	Status      string     `json:"status"`
	Actor       string     `json:"actor"`
	Reason      string     `json:"reason,omitempty"`
	Outcome     string     `json:"outcome,omitempty"`
	OperationID string     `json:"operation_id,omitempty"`
}

func newNodeHistory(e *env) *cobra.Command {
	var since *string
	var limit uint
	c := e.command("history NODE", "Show the operations and decisions of a node",
		`Shows what was done to a node, newest first: its registration, its operations, the
decisions about them and their tasks, and the changes of its registration. The history is
read from the database, which keeps it longer than Temporal keeps finished workflows.`,
		"  gpuaas node history gpu-17\n  gpuaas node history gpu-17 --since 720h -o json",
		func(ctx context.Context, node string) error {
			entries, err := history(ctx, e.api(), node, since, limit)
			if err != nil {
				return err
			}
			now := e.clock.now()
			return printList(e.console, listing[historyEntry]{
				object: map[string][]historyEntry{"history": entries}, rows: entries, empty: "no entry matches",
				header: []string{"TIME", "ACTION", "STATUS", "BY", "TOOK", "REASON", "OUTCOME", "ID"}, wide: 1,
				cells: func(h historyEntry) []string {
					duration := ""
					if h.ID == h.OperationID {
						duration = elapsed(&h.At, h.EndedAt, now)
					}
					return []string{h.At.UTC().Format(time.RFC3339), h.Action, h.Status, h.Actor, dash(duration), dash(h.Reason), dash(h.Outcome), h.ID}
				},
				name: func(h historyEntry) string { return h.ID },
			})
		})
	addSince(c, &since, "entries")
	c.Flags().UintVar(&limit, "limit", wire.DefaultPage, "show the newest N; 0 for all")
	return c
}

// history merges the operations of a node with the audit events of decisions and
// changes, newest first. The newest of both are among the newest of each.
func history(ctx context.Context, api *adminclient.Client, node string, since *string, limit uint) ([]historyEntry, error) {
	ops, err := listOperations(ctx, api, adminclient.ListOperationsParams{Node: &node, Since: since}, limit)
	if err != nil {
		return nil, err
	}
	events, err := listAudit(ctx, api, adminclient.ListAuditParams{Node: &node, Since: since, Action: &[]string{
		audit.ActionName(lifecycle.ActionRegister), audit.NodeSet, audit.Decision, audit.TaskResume, audit.TaskCancel}}, limit)
	if err != nil {
		return nil, err
	}
	entries := []historyEntry{}
	for _, o := range ops {
		entries = append(entries, historyEntry{ID: o.OperationID, At: o.StartedAt, EndedAt: o.EndedAt, Action: string(o.Action),
			Status: string(o.Status), Actor: o.Actor, Reason: o.Reason, Outcome: o.Outcome, OperationID: o.OperationID})
	}
	for _, v := range events {
		entries = append(entries, historyEntry{ID: eventName(v), At: v.At, Action: historyAction(v), Status: v.Result, Actor: v.Actor,
			Reason: v.Reason, OperationID: v.OperationID})
	}
	slices.SortStableFunc(entries, func(x, y historyEntry) int { return y.At.Compare(x.At) })
	if limit > 0 {
		entries = entries[:min(int(limit), len(entries))]
	}
	return entries, nil
}

// historyAction names an event like the command that caused it: op force (drain),
// task resume, register.
func historyAction(v audit.Row) string {
	if v.Action == audit.Decision {
		return "op " + v.Detail["decision"] + " (" + v.Detail["phase"] + ")"
	}
	return strings.NewReplacer("nodes.", "", "tasks.", "task ").Replace(v.Action)
}

// eventName is the name of an audit event: stream/seq.
func eventName(v audit.Row) string { return v.Stream + "/" + strconv.FormatInt(v.Seq, 10) }
