package cli

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// newToken is what admin token new prints.
type newToken struct {
	Name  string     `json:"name"`
	Role  trust.Role `json:"role"`
	Token string     `json:"token"`
	// Line goes into the file of GPUAAS_ADMIN_TOKENS_FILE.
	Line string `json:"line"`
}

func newAdminToken(e *env) *cobra.Command {
	return newGroup("token", "Make tokens of the admin API", "Makes tokens of the admin API.", newAdminTokenNew(e))
}

func newAdminTokenNew(e *env) *cobra.Command {
	role := string(trust.RoleViewer)
	roles := make([]string, 0, len(trust.Roles()))
	for _, r := range trust.Roles() {
		roles = append(roles, string(r))
	}
	c := &cobra.Command{
		Use: "new NAME", Short: "Make a token for a person or a program",
		Long: `Makes a token for the subject NAME and prints two lines: the token, which is shown
only this once, and the line to add to the file of GPUAAS_ADMIN_TOKENS_FILE of
gpuaas-api. The file holds the token's hash only, and is read again when it changes.

Roles: a viewer reads; an operator also starts operations and decides about them; an
admin also removes nodes and forces phases; a bootstrapper makes bootstrap scripts only.`,
		Example: "  gpuaas admin token new alice --role operator\n  gpuaas admin token new ci --role viewer -o json | jq -r .line >> admin-tokens",
		Args:    exactArgs("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return runAdminTokenNew(e, args[0], trust.Role(role)) },
	}
	c.Flags().StringVar(&role, "role", role, strings.Join(roles, ", "))
	c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // fails only for an unknown flag
	return c
}

func runAdminTokenNew(e *env, name string, role trust.Role) error {
	const help = "gpuaas admin token new"
	switch {
	case !trust.ValidSubject(name):
		return usagef(help, "%q is not a name: want at most 64 of a-z A-Z 0-9 . _ - @", name)
	case !slices.Contains(trust.Roles(), role):
		return usagef(help, "--role %q: want viewer, operator, admin or bootstrapper", role)
	}
	token := "gpuat_" + rand.Text()
	sum := sha256.Sum256([]byte(token))
	made := newToken{Name: name, Role: role, Token: token, Line: fmt.Sprintf("%s %s %s", name, role, hex.EncodeToString(sum[:]))}
	return e.print(made, func(w io.Writer) {
		row(w, "Token:", made.Token)
		row(w, "Line:", made.Line)
	})
}
