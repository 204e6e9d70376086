package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// options are shared by all commands of the group.
type options struct {
	dir            string
	stdout, stderr io.Writer
}

// NewCommand returns the command group `dev`. Results go to stdout, messages to
// stderr. If the root command has a persistent flag --output (table, json, yaml),
// `dev status` and `dev env` use it. Errors are *schema.Error, or *UsageError for
// an invalid command line.
func NewCommand(stdout, stderr io.Writer) *cobra.Command {
	o := &options{stdout: stdout, stderr: stderr}
	c := &cobra.Command{
		Use: "dev", Short: "Run a development stack on this machine",
		Long: `Run the complete stack on this machine for development: Postgres, Vault, Temporal
with its Web UI, the worker, the API, and node agents, each as a separate process.

For Temporal, Vault, and Postgres, the stack uses the first of these that exists:

  1. the server at TEMPORAL_ADDRESS, VAULT_ADDR, or GPUAAS_DATABASE_URL
  2. a program on PATH: temporal, vault, or postgres
  3. the project's own build of Temporal or Vault; the system's Postgres package

All state is in one folder and survives a stop. Do not use this stack in
production: it stores Vault's unseal key next to Vault's data.`,
		Example: `  gpuaas dev up --detach
  eval "$(gpuaas dev env)"
  gpuaas dev status
  gpuaas dev down`,
	}
	c.PersistentFlags().StringVar(&o.dir, "dir", defaultDir, "folder that contains the stack's state")
	c.AddCommand(newUp(o), newStatus(o), newEnv(o), newAgent(o), newFleet(o), newDown(o))
	return c
}

// defaultDir is the default of --dir.
const defaultDir = ".dev"

// dirFlag returns the flag that selects a stack in a suggested command.
func dirFlag(dir string) string {
	if dir == defaultDir {
		return ""
	}
	return fmt.Sprintf(" --dir '%s'", strings.ReplaceAll(dir, "'", `'\''`))
}

// exactArgs requires exactly the named arguments.
func exactArgs(names ...string) cobra.PositionalArgs {
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

// outputFormat returns the root command's --output, or "table" if it has none.
func outputFormat(c *cobra.Command) string {
	if f := c.Flag("output"); f != nil {
		return f.Value.String()
	}
	return "table"
}

// print writes a result as JSON or YAML, or as text.
func (o *options) print(c *cobra.Command, v any, text func(w io.Writer) error) error {
	switch outputFormat(c) {
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
