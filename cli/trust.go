package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/rotation"
)

func newTrust(e *env) *cobra.Command {
	c := newGroup("trust", "Show and revoke the keys that nodes trust", "Shows and revokes the keys with which nodes verify tasks.",
		newTrustShow(e), newTrustRevoke(e))
	c.Example = "  gpuaas trust show\n  gpuaas trust revoke task-prod.v3 --reason INC-77"
	return c
}

func newTrustShow(e *env) *cobra.Command {
	return e.command("show", "Show the newest verifier set", "Shows the newest verifier set, its keys with their states, and how many nodes use it.",
		"  gpuaas trust show\n  gpuaas trust show -o json | jq -r .expires_at",
		func(ctx context.Context, _ string) error {
			t, err := decode[rotation.Trust](e.api().GetTrust(ctx, nil))
			if err != nil {
				return err
			}
			return e.print(t, func(w io.Writer) {
				fields(w, "Verifier set:", fmt.Sprintf("%d (epoch %d)", t.Version, t.Epoch), "Hash:", t.Hash,
					"Expires:", t.ExpiresAt.UTC().Format(time.RFC3339), "Signed by:", t.SignedBy,
					"Confirmed:", fmt.Sprintf("by %d of %d nodes", t.Confirmed, t.Nodes))
				for _, k := range t.Keys {
					fmt.Fprintf(w, "  %-8s %s\n", k.State, k.KeyID)
				}
				for _, k := range t.Roots {
					fmt.Fprintf(w, "  %-8s %s\n", k.State, k.KeyID)
				}
			}, strconv.FormatInt(t.Version, 10))
		})
}

func newTrustRevoke(e *env) *cobra.Command {
	s := rotation.Start{Kind: rotation.RevokeKey}
	var c *cobra.Command
	c = e.command("revoke KEY", "Revoke a key that signs tasks, at once",
		`Publishes a verifier set of a new epoch in which KEY is revoked. From then on, no node that
has the set accepts a task that KEY signed; open tasks are signed again. If KEY is the
active key, the staged one or a new one replaces it. An open rotation ends, and so does a
revocation of another key when its set is published. This cannot be undone, and requires
the role admin. gpuaas rotate show lists the nodes that do not have the set yet.`,
		"  gpuaas trust revoke task-prod.v3 --reason INC-77",
		func(ctx context.Context, key string) error {
			if err := checkReason(c.CommandPath(), s.Reason, true); err != nil {
				return err
			}
			s.Key = key
			return startRotation(ctx, e, s)
		})
	c.Flags().StringVar(&s.Reason, "reason", "", "reason, kept in the audit trail (required)")
	c.Flags().BoolVar(&s.DryRun, "dry-run", false, "show the nodes that do not have the newest set; revoke nothing")
	return c
}
