package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/text"
)

func newAdminCheck(e *env) *cobra.Command {
	c := e.command("check", "Check the parts of an installation",
		`Checks the database (schema, roles, clock), Vault (seal, clock, CAs and keys), Temporal
(namespace, search attributes, workers, schedules, calls that fail), the providers, and the
folder of archived audit events, and the admin API. It asks each service itself, so it also
works while the admin API is unavailable. It changes nothing. A part that the environment
does not name is skipped.

For one node, use "gpuaas doctor NODE".

Environment:
  GPUAAS_API_URL            the admin API (or --api-url, or the current context)
  GPUAAS_DATABASE_URL       the database (or GPUAAS_DATABASE_URL_FILE)
  VAULT_ADDR                Vault
  GPUAAS_VAULT_TOKEN_FILE   a file with a token that may read Vault's CAs, roles and keys
  GPUAAS_ENV                name of this environment, for example prod
  GPUAAS_AUDIT_ARCHIVE_DIR  the folder of archived audit events, if it is mounted here

The exit code is 1 if there is a fault.`,
		"  gpuaas admin check\n  gpuaas admin check -o json | jq '.checks[] | select(.result == \"failed\")'",
		func(ctx context.Context, _ string) error {
			if e.platform.Check == nil {
				return errNotLinked("check")
			}
			r, err := e.platform.Check(ctx, e.temporalConfig())
			if err != nil {
				return err
			}
			checkAPI(ctx, e, &r)
			if err := e.print(r, func(w io.Writer) { writeReport(w, r) }); err != nil {
				return err
			}
			if n := skipped(r); n > 0 {
				e.message("%s skipped, because of an earlier fault or because the environment does not name the part: gpuaas admin check --help",
					text.Count(n, "check"))
			}
			if len(r.Faults()) > 0 {
				return &exitError{schema.ExitFailed, nil}
			}
			return nil
		})
	return c
}

// skipped is the number of checks that were not made.
func skipped(r diagnosis.Report) (n int) {
	for _, c := range r.Checks {
		if c.Result == diagnosis.Skipped {
			n++
		}
	}
	return n
}

// checkAPI adds whether the admin API is ready.
func checkAPI(ctx context.Context, e *env, r *diagnosis.Report) {
	c := diagnosis.Check{Name: "admin API", Asked: "whether it is ready"}
	failure, configured := apiReady(ctx, e)
	switch {
	case !configured:
		r.Add(c.Skipped())
	case failure != nil:
		r.Add(c.Failed(failure.Message, diagnosis.ControlPlane, failure.Next))
	default:
		r.Add(c.OK("ready"))
	}
}
