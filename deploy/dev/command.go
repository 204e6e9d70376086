package dev

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// options are shared by all commands of the group.
type options struct {
	dir            string
	stdout, stderr io.Writer
	print          Printer
}

// Printer prints a result in the selected format: v for programs, or text for people,
// whose tabs separate columns.
type Printer = func(v any, text func(w io.Writer)) error

// NewCommand returns the command group `dev`. Output of the programs that it runs goes
// to stdout, messages to stderr, and results to the printer. Errors are *schema.Error,
// or *UsageError for an invalid command line.
func NewCommand(stdout, stderr io.Writer, printer Printer) *cobra.Command {
	o := &options{stdout: stdout, stderr: stderr, print: printer}
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

// upCommand returns the command that starts the stack of a folder, with flags.
func upCommand(dir string, flags ...string) string {
	return strings.Join(append([]string{"gpuaas dev up"}, flags...), " ") + dirFlag(dir)
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
