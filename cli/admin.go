package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func newAdmin(e *env) *cobra.Command {
	c := newGroup("admin", "Prepare and administer an installation", "Prepares and administers an installation.", newAdminSetup(e),
		newAdminCheck(e), newAdminRotateSecretIDs(e), newAdminReplay(e), newAdminPromote(e), newAdminBackup(e), newAdminDrill(e), newAdminRestoreMode(e), newAdminSignAgent(e),
		newGroup("token", "Create tokens of the admin API", "Creates tokens of the admin API.", newAdminTokenNew(e)))
	c.Example = "  gpuaas admin setup\n  gpuaas admin token new alice --role operator\n  gpuaas admin rotate-secret-ids"
	return c
}

func newAdminSetup(e *env) *cobra.Command {
	skip := false
	c := e.command("setup", "Prepare database, Vault and Temporal",
		`Runs the database migrations, creates Vault's mounts, keys, roles and policies,
publishes the first verifier set, and creates Temporal's namespace, search attributes
and the schedules: the reclaimer, the run watcher, the maintenance of trust and the
deletion of old records. It is idempotent: existing parts are left unchanged, and a
verifier set with less than half of its lifetime left is replaced by a new one. For an
upgrade, run it before you start the new API and worker. It changes nothing on nodes.
If Temporal's credential may not create the namespace and the search attributes, as on
Temporal Cloud, it prints the commands that do. Then run it with --skip-namespace.

Environment:
  GPUAAS_DATABASE_URL      the database (or GPUAAS_DATABASE_URL_FILE)
  VAULT_ADDR               Vault
  GPUAAS_VAULT_TOKEN_FILE  a file with a token that may create mounts and policies and,
                           unless it is root, has the policy gpuaas-sets
  GPUAAS_SETUP_OUT_DIR     directory for the role ids of worker and API
  GPUAAS_VAULT_KUBERNETES_MOUNT, _NAMESPACE, _AUDIENCE
                           Vault's Kubernetes auth method, for logins with service accounts;
                           GPUAAS_SETUP_OUT_DIR is then optional
  GPUAAS_VAULT_SECRET_ID_TTL  lifetime of the secret ids (default 720h; 0s for no end)
  GPUAAS_VAULT_WORKER_CIDRS, GPUAAS_VAULT_API_CIDRS
                           networks from which worker and API may use Vault (default all)
  GPUAAS_ENV               name of this environment, for example prod
  GPUAAS_NODE_API_NAMES    names in the node API's certificate`,
		"  gpuaas admin setup",
		func(ctx context.Context, _ string) error {
			if e.platform.Setup == nil {
				return errNotLinked("setup")
			}
			o := e.temporalConfig()
			o.SkipNamespace = skip
			if err := e.platform.Setup(ctx, o, editor{e.stderr, clean}); err != nil {
				return err
			}
			return printDone(e.console, "database, Vault and Temporal are ready")
		})
	c.Flags().BoolVar(&skip, "skip-namespace", false, "check Temporal's namespace and search attributes, do not create them")
	return c
}

func newAdminRotateSecretIDs(e *env) *cobra.Command {
	return e.command("rotate-secret-ids", "Replace the Vault secret ids of worker and API",
		`Creates a Vault secret id for the worker, the API and the rotator, and replaces their files.
The processes read the files at each login, at least once a day. The secret ids before
remain valid until they expire, so that copies of the files can be replaced meanwhile. Run
it once a day, or at least three times in the lifetime of a secret id.

Environment:
  VAULT_ADDR               Vault
  GPUAAS_VAULT_TOKEN_FILE  a file with a token that has the policy gpuaas-secret-ids
  GPUAAS_SETUP_OUT_DIR     directory of the files
  GPUAAS_ENV               name of this environment, for example prod`,
		"  gpuaas admin rotate-secret-ids",
		func(ctx context.Context, _ string) error {
			if e.platform.RotateSecretIDs == nil {
				return errNotLinked("rotate-secret-ids")
			}
			if err := e.platform.RotateSecretIDs(ctx, editor{e.stderr, clean}); err != nil {
				return err
			}
			return printDone(e.console, "the secret ids of worker, API and rotator are replaced")
		})
}

// doneMessage is the output for programs of a command that has no other one.
type doneMessage struct {
	Message string `json:"message"`
}

// printDone says that the command is done: on stdout in a format for programs, else on stderr.
func printDone(e *console, message string) error {
	if e.machine() {
		return e.printMachine(doneMessage{message})
	}
	e.message("%s", message)
	return nil
}

// newToken is the output of admin token new.
type newToken struct {
	Name  string     `json:"name"`
	Role  trust.Role `json:"role"`
	Token string     `json:"token"`
	// Line is the token's line in the file of GPUAAS_ADMIN_TOKENS_FILE.
	Line string `json:"line"`
}

func newAdminTokenNew(e *env) *cobra.Command {
	role := trust.RoleViewer
	c := e.command("new NAME", "Create a token for a person or a program",
		`Creates a token for the subject NAME and prints two lines: the token, which is shown
only this once, and the line to add to the file that GPUAAS_ADMIN_TOKENS_FILE of
gpuaas-api names. The file contains only the token's hash. The API rereads it when it
changes.

Roles: a viewer reads; an operator also starts operations and resolves them; an admin
also removes nodes and forces phases; a bootstrapper only creates bootstrap scripts;
a reporter, such as the cluster agent, only reports the health of nodes and reads the nodes.`,
		"  gpuaas admin token new alice --role operator\n  (umask 077; gpuaas admin token new ci --role viewer -o json > ci.json)\n  jq -r .line ci.json >> admin-tokens",
		func(ctx context.Context, arg string) error { return runAdminTokenNew(e, arg, role) })
	addChoices(c, &role, "role", "`ROLE` of the subject (default viewer)", trust.Roles()...)
	return c
}

func runAdminTokenNew(e *env, name string, role trust.Role) error {
	if !trust.ValidSubject(name) {
		return usagef("gpuaas admin token new", "%q is not a valid name: must be at most 64 of a-z A-Z 0-9 . _ - @", name)
	}
	token := trust.APITokenPrefix + rand.Text()
	made := newToken{Name: name, Role: role, Token: token, Line: fmt.Sprintf("%s %s %s", name, role, schema.SHA256Hex([]byte(token)))}
	return e.print(made, func(w io.Writer) { fields(w, "Token:", made.Token, "Line:", made.Line) }, made.Name)
}
