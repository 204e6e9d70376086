package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// options are what all commands of the group share.
type options struct {
	dir            string
	stdout, stderr io.Writer
}

// NewCommand answers the command group `dev`. Results go to stdout, talk to
// stderr. Where the root has a persistent flag --output (table, json, yaml),
// `dev status` and `dev env` follow it. Errors are *schema.Error, or
// *UsageError for a mistake on the command line.
func NewCommand(stdout, stderr io.Writer) *cobra.Command {
	o := &options{stdout: stdout, stderr: stderr}
	c := &cobra.Command{
		Use: "dev", Short: "Run the whole stack on this machine",
		Long: `Runs the whole stack on this machine, for development: Postgres, Vault, Temporal
with its Web UI, the worker, the API and node agents, as real processes.

Each engine is, in this order: the one whose address the environment names
(TEMPORAL_ADDRESS, VAULT_ADDR, GPUAAS_DATABASE_URL), a program on PATH (temporal,
vault, postgres), or the project's own embedded build. The state is kept in one
folder and survives a stop. Nothing here is fit for production: the keys of the
Vault lie beside its data.`,
		Example: `  gpuaas dev up --detach
  eval "$(gpuaas dev env)"
  gpuaas dev status
  gpuaas dev down`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			message := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				message += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return &UsageError{Command: c.CommandPath(), Message: message}
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SuggestionsMinimumDistance = 2
	c.PersistentFlags().StringVar(&o.dir, "dir", defaultDir, "folder of the stack's state")
	c.AddCommand(newUp(o), newStatus(o), newEnv(o), newAgent(o), newFleet(o), newDown(o))
	return c
}

// defaultDir is where a stack's state is, unless --dir says otherwise.
const defaultDir = ".dev"

// dirFlag is what to add to a command that is to be typed for a stack.
func dirFlag(dir string) string {
	if dir == defaultDir {
		return ""
	}
	return fmt.Sprintf(" --dir '%s'", strings.ReplaceAll(dir, "'", `'\''`))
}

// takes wants exactly the named arguments.
func takes(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return &UsageError{Command: c.CommandPath(), Message: "missing argument " + strings.Join(names[len(args):], " ")}
		case len(args) > len(names):
			return &UsageError{Command: c.CommandPath(), Message: fmt.Sprintf("unexpected argument %q", args[len(names)])}
		}
		return nil
	}
}

// form is the root's --output, "table" where it has none.
func form(c *cobra.Command) string {
	if f := c.Flag("output"); f != nil {
		return f.Value.String()
	}
	return "table"
}

// print writes a result: the object for machines, text for people.
func (o *options) print(c *cobra.Command, v any, text func(w io.Writer) error) error {
	switch form(c) {
	case "json":
		enc := json.NewEncoder(o.stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case "yaml":
		out, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = o.stdout.Write(out)
		return err
	}
	return text(o.stdout)
}
