package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// globalFlags are the flags that every command has.
type globalFlags struct {
	address   string
	namespace string
	apiURL    string
	direct    bool
}

const rootLong = `gpuaas manages the lifecycle of GPU nodes: register, enroll, provision, drain, retire,
reactivate, remove. Every action except register runs as a durable operation. gpuaas
starts it, follows it, and resolves it when it gets stuck.

NODE is a node id or a host name. Results go to stdout, messages to stderr.

Environment:
  GPUAAS_API_URL          the admin API
  GPUAAS_API_TOKEN        its bearer token (there is no flag: flags show in ps)
  GPUAAS_API_TOKEN_FILE   a file that contains the token
  TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE
                          for --direct, as the temporal command reads them
  GPUAAS_WEB_UI_URL       base of the links to Temporal's Web UI
  NO_COLOR                no colors

`

const rootExample = `  gpuaas node register gpu-17 --sku h100 --region fra1 --gpus 8
  gpuaas node enroll gpu-17 --bundle gpu-17.bundle.json
  gpuaas node drain gpu-17 --deadline 30m --reason RMA-4411
  gpuaas stuck`

func newRoot(e *env) *cobra.Command {
	e.flags, e.output = globalFlags{}, formatTable
	root := &cobra.Command{
		Use: "gpuaas", Short: "Durable lifecycle operations on GPU nodes",
		Long: rootLong + exitTable(), Example: rootExample,
		SilenceErrors: true, SilenceUsage: true,
	}
	asGroup(root)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	f := root.PersistentFlags()
	f.StringVar(&e.flags.address, "address", "", "Temporal's address, for --direct (env TEMPORAL_ADDRESS)")
	f.StringVar(&e.flags.namespace, "namespace", "", `Temporal's namespace, for --direct (env TEMPORAL_NAMESPACE, default "gpuaas")`)
	f.StringVar(&e.flags.apiURL, "api-url", "", "the admin API (env GPUAAS_API_URL, default "+defaultAPIURL+")")
	f.BoolVar(&e.flags.direct, "direct", false, "break-glass mode: start, read and decide through Temporal instead of the admin API")
	f.VarP(&e.output, "output", "o", "output format")
	f.BoolVar(&e.noColor, "no-color", e.getenv("NO_COLOR") != "", "no colors (env NO_COLOR)")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usagef(c.CommandPath(), "%s", err) })
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions( //nolint:errcheck // fails only for an unknown flag
		[]string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML), string(formatName)}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(newNode(e), newOp(e), newTask(e), newStuck(e), newAudit(e), newAdmin(e), newVersion(e))
	if e.platform.Dev != nil {
		root.AddCommand(e.platform.Dev(e.stdout, e.stderr))
	}
	root.SetHelpCommand(newHelp())
	addCompletion(root)
	return root
}

// newHelp is cobra's help command, but an unknown topic is a usage error.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command", Long: "Prints the help of a command.",
		Example: "  gpuaas help node drain", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			topic, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("gpuaas", "unknown help topic %q", strings.Join(args, " "))
			}
			return topic.Help()
		},
	}
}

// addCompletion adds cobra's command of completion scripts. It takes the
// command's output as it is now, so that has to be set before.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		asGroup(c)
		for _, shell := range c.Commands() {
			shell.Args = noArgs()
		}
	}
}

// newGroup is a command that only holds others.
func newGroup(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long}
	asGroup(c)
	c.AddCommand(commands...)
	return c
}

// asGroup makes a command print its help alone and refuse an unknown command
// with what was probably meant.
func asGroup(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		message := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			message += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usagef(c.CommandPath(), "%s", message)
	}
	c.SuggestionsMinimumDistance = 2
}

// exactArgs takes exactly the named arguments.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(args) < len(names) {
			return usagef(c.CommandPath(), "missing argument %s", strings.Join(names[len(args):], " "))
		}
		return usagef(c.CommandPath(), "unexpected argument %q", args[len(names)])
	}
}

// noArgs takes no arguments.
func noArgs() cobra.PositionalArgs { return exactArgs() }
