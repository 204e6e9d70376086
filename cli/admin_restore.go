package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/restore"
	"github.com/gpuaas/gpuaas/schema/text"
)

// RestoreOptions are the options of Platform.RestoreMode.
type RestoreOptions struct {
	// Action is start, stop or status.
	Action string
	// Reason and For are those of a start.
	Reason string
	For    time.Duration
	// Actor is who asks, for the audit trail.
	Actor string
}

const restoreEnvironment = `

Environment:
  GPUAAS_DATABASE_URL      the database, as the owner of its tables (or GPUAAS_DATABASE_URL_FILE)`

func newAdminRestoreMode(e *env) *cobra.Command {
	return newGroup("restore-mode", "Let nodes work again after a restore of the database",
		"Starts, ends and shows the restore mode, in which nodes that are ahead of a restored database work again.",
		newRestoreStart(e),
		e.command("stop", "End the restore mode", "Ends the restore mode. It also ends automatically."+restoreEnvironment,
			"  gpuaas admin restore-mode stop",
			func(ctx context.Context, _ string) error {
				return runRestoreMode(ctx, e, RestoreOptions{Action: "stop"})
			}),
		e.command("status", "Show the restore mode and what it found",
			`Shows whether the restore mode is on, the part of the audit trail that is missing, the nodes
whose counters or certificates were ahead of the database, and the nodes that have sent no heartbeat.`+restoreEnvironment,
			"  gpuaas admin restore-mode status\n  gpuaas admin restore-mode status -o json | jq -r '.absent[]'",
			func(ctx context.Context, _ string) error {
				return runRestoreMode(ctx, e, RestoreOptions{Action: "status"})
			}))
}

func newRestoreStart(e *env) *cobra.Command {
	o := RestoreOptions{Action: "start"}
	c := e.command("start", "Start the restore mode",
		`Starts the restore mode after the database was restored to an earlier time, and before the
API and the workers use it.

Voids all open enrollment tokens, because some may have been used, and ends all sessions of the
console, because some may have ended. While the mode is on, the API
accepts a valid certificate of a known node that the database does not have, if it is newer than
the one on record, and a recovery token that the database does not have, if the node's recovery
key signed the request. It locks no identity as cloned. Operations without an open run are
recorded as failed, and their nodes return to the state before. The mode ends automatically.

Someone who holds a valid key and certificate of a node can use them in this time, even if the
lock or the reissue that ended them is in the part of the database that was lost. Repeat such
locks, reissues and removals right after the start.`+restoreEnvironment,
		"  gpuaas admin restore-mode start --reason 'restored the dump of 04:00'",
		func(ctx context.Context, _ string) error {
			if o.Reason == "" {
				return usagef("gpuaas admin restore-mode start", "--reason is required")
			}
			return runRestoreMode(ctx, e, o)
		})
	c.Flags().StringVar(&o.Reason, "reason", "", "reason, kept in the audit trail (required)")
	c.Flags().DurationVar(&o.For, "for", restore.DefaultLength, "`DURATION` after which the mode ends, at most "+lifecycle.Span(restore.MaxLength))
	return c
}

func runRestoreMode(ctx context.Context, e *env, o RestoreOptions) error {
	if e.platform.RestoreMode == nil {
		return errNotLinked("restore-mode")
	}
	o.Actor = e.actor
	m, err := e.platform.RestoreMode(ctx, o)
	if err != nil {
		return err
	}
	if o.Action == "start" && m.OtherSessions > 0 {
		e.message("Warning: %s in the database %s. Start the mode in the restored database, before other processes use it.", text.Count(int(m.OtherSessions), "other session"), m.Database)
	}
	return e.print(m, func(w io.Writer) { printRestoreMode(w, m) }, strconv.FormatBool(m.On))
}

// maxAbsent is how many absent nodes the table names.
const maxAbsent = 10

func printRestoreMode(w io.Writer, m restore.Mode) {
	fields(w, "Database:", fmt.Sprintf("%s (%s)", m.Database, text.Count(int(m.OtherSessions), "other session")))
	if m.Epoch == 0 {
		fields(w, "Restore mode:", "never started")
		return
	}
	state := "off"
	if m.On {
		state = "on until " + m.EndsAt.Format(time.RFC3339)
	}
	fields(w, "Restore mode:", state, "Epoch:", strconv.FormatInt(m.Epoch, 10), "Started:", m.StartedAt.Format(time.RFC3339)+" by "+m.Actor,
		"Reason:", text.Line(m.Reason, maxRestoreReason),
		"Audit gap:", fmt.Sprintf("%s, from %s", lifecycle.Span(time.Duration(m.AuditGapSeconds)*time.Second), m.LastAuditAt.Format(time.RFC3339)),
		"Tasks missing:", fmt.Sprintf("at least %d, of %d nodes", m.TasksMissing, m.NodesAhead),
		"Certificates adopted:", strconv.FormatInt(m.IdentitiesAdopted, 10),
		"Operations ended:", strconv.FormatInt(m.OperationsEnded, 10), "Tokens voided:", strconv.FormatInt(m.TokensVoided, 10),
		"Absent nodes:", absentNodes(m.Absent))
	if m.UnknownNodes > 0 {
		fields(w, "Unknown nodes:", fmt.Sprintf("%d rejections of nodes that the database does not have; register them again", m.UnknownNodes))
	}
	if m.LostSets > 0 {
		fields(w, "Verifier sets:", fmt.Sprintf("%d nodes have a set that the database does not have; see gpuaas stuck", m.LostSets))
	}
}

const maxRestoreReason = 200

func absentNodes(hosts []string) string {
	switch n := len(hosts); {
	case n == 0:
		return "none"
	case n > maxAbsent:
		return fmt.Sprintf("%d: %s, …", n, strings.Join(hosts[:maxAbsent], ", "))
	}
	return fmt.Sprintf("%d: %s", len(hosts), strings.Join(hosts, ", "))
}
