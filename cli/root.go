package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/version"
)

// globalFlags are the flags that every command has.
type globalFlags struct {
	address   string
	namespace string
	apiURL    string
	context   string
	direct    bool
	// insecureHTTP allows requests that leave this machine unencrypted.
	insecureHTTP bool
}

const rootLong = `gpuaas manages the lifecycle of GPU nodes: register, enroll, reissue-enrollment,
provision, quarantine, release, drain, uncordon, retire, reactivate, terminate, remove,
upgrade-agent and recover. Every action except register runs as a durable operation.
gpuaas starts operations, follows them, and resolves them when they are parked.

NODE is a node id or a host name. Results go to stdout, messages to stderr.

The address and the token of the admin API come from flags, else from the environment,
else from the current context of the configuration file (gpuaas config, gpuaas login).

Output formats (-o):
  table, wide           columns for people; wide has more of them
  json, yaml            the object of the admin API; a failure is {"error": {...}}
  name                  one name per line: host names, or the ids of operations and tasks
  jsonpath=EXPRESSION   the selected values, one per line. EXPRESSION is an RFC 9535 path
                        such as '$.nodes[?@.state=="active"].host'. The leading $ is
                        optional, and kubectl's braces are accepted: '{.nodes[*].host}'

Environment:
  GPUAAS_CONFIG           the configuration file (default $XDG_CONFIG_HOME/gpuaas/config.yaml,
                          else ~/.config/gpuaas/config.yaml)
  GPUAAS_API_URL          the admin API
  GPUAAS_API_TOKEN        its bearer token (there is no flag: flags show in ps)
  GPUAAS_API_TOKEN_FILE   a file that contains the token
  GPUAAS_INSECURE_HTTP    true allows an http URL of another host, as --insecure-http does
  TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE
                          for --direct, as the temporal command reads them
  GPUAAS_WEB_UI_URL       for --direct, base of the links to Temporal's Web UI
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
		Long: rootLong + exitTable(), Example: rootExample, Version: version.Version(),
		SilenceErrors: true, SilenceUsage: true,
	}
	asGroup(root)
	root.SetVersionTemplate("gpuaas {{.Version}}\n")
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	f := root.PersistentFlags()
	f.StringVar(&e.flags.address, "address", "", "Temporal's address, for --direct (env TEMPORAL_ADDRESS)")
	f.StringVar(&e.flags.namespace, "namespace", "", `Temporal's namespace, for --direct (env TEMPORAL_NAMESPACE, default "gpuaas")`)
	f.StringVar(&e.flags.apiURL, "api-url", "", "the admin API (env GPUAAS_API_URL, default "+defaultAPIURL+")")
	insecure, _ := strconv.ParseBool(e.getenv("GPUAAS_INSECURE_HTTP")) // anything else is false
	f.BoolVar(&e.flags.insecureHTTP, "insecure-http", insecure, "send the token to an http URL of another host, unencrypted (env GPUAAS_INSECURE_HTTP)")
	f.StringVar(&e.flags.context, "context", "", "context of the configuration file (default: the current context)")
	f.BoolVar(&e.flags.direct, "direct", false, "break-glass mode: start, show and resolve operations through Temporal instead of the admin API")
	f.VarP(&e.output, "output", "o", "output format")
	f.BoolVar(&e.noColor, "no-color", e.getenv("NO_COLOR") != "", "no colors (env NO_COLOR)")
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return e.useDirect(c) }
	completes(root, "output", cobra.FixedCompletions([]string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML),
		string(formatName), string(formatPath)}, cobra.ShellCompDirectiveNoFileComp))
	completes(root, "context", e.completeContext)
	root.AddCommand(newNode(e), newSKU(e), newTemplate(e), newProvider(e), newInstance(e), newOp(e), newTask(e), newStuck(e), newDoctor(e), newCapacity(e), newAudit(e), newRotate(e), newTrust(e), newRecovery(e), newAdmin(e), newConfig(e), newLogin(e), newVersion(e))
	if e.platform.Dev != nil {
		dev := e.platform.Dev(e.stdout, e.stderr, func(v any, text func(w io.Writer)) error { return e.print(v, text) })
		asGroup(dev)
		root.AddCommand(dev)
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

// addCompletion adds cobra's command of completion scripts. It uses the command's
// current output, so that has to be set before.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, _ := root.Find([]string{"completion"}) // it was just added
	asGroup(c)
	for _, shell := range c.Commands() {
		shell.Args = noArgs()
	}
}

// command is a command with at most one argument, which use names after the verb.
func (e *env) command(use, short, long, example string, run func(ctx context.Context, arg string) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, ValidArgsFunction: cobra.NoFileCompletions}
	switch _, arg, _ := strings.Cut(use, " "); {
	case arg == "":
		c.Args = noArgs()
	case arg == "TASK":
		c.Args, c.ValidArgsFunction = exactArgs(arg), e.completeTask("")
	case arg == "CONTEXT":
		c.Args, c.ValidArgsFunction = exactArgs(arg), e.completeContext
	case strings.Contains(arg, "NODE"):
		c.Args, c.ValidArgsFunction = exactArgs("NODE"), e.completeNode
	default:
		c.Args = exactArgs(arg)
	}
	c.RunE = func(c *cobra.Command, args []string) error { return run(c.Context(), strings.Join(args, "")) }
	return c
}

// newGroup is a command that only contains others.
func newGroup(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long}
	asGroup(c)
	c.AddCommand(commands...)
	return c
}

// asGroup makes a command print its help when it is called alone, and reject an unknown
// command with similar names.
func asGroup(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownCommand(c, args[0])
	}
	c.SuggestionsMinimumDistance = 2
	c.Annotations = map[string]string{groupMark: ""}
}

// groupMark is the annotation of commands that only contain others.
const groupMark = "group"

// unknownCommand is the usage error of a name that a group does not have.
func unknownCommand(c *cobra.Command, name string) error {
	message := fmt.Sprintf("unknown command %q for %q", name, c.CommandPath())
	near := slices.DeleteFunc(c.SuggestionsFor(name), func(other string) bool { return other == "un"+name }) // the opposite
	if len(near) == 0 {
		near = inGroups(c, name)
	}
	if len(near) > 0 {
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef(c.CommandPath(), "%s", message)
}

// maxSuggestions is the largest number of groups with a command of the name that are suggested.
const maxSuggestions = 3

// inGroups returns the commands of the name in the groups of a command, for example "node drain". It returns
// none if there are many.
func inGroups(c *cobra.Command, name string) (found []string) {
	for _, group := range c.Commands() {
		for _, sub := range group.Commands() {
			if sub.Name() == name && sub.IsAvailableCommand() {
				found = append(found, group.Name()+" "+name)
			}
		}
	}
	if len(found) > maxSuggestions {
		return nil
	}
	return found
}

// exactArgs accepts exactly the named arguments.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef(c.CommandPath(), "missing argument %s", strings.Join(names[len(args):], " "))
		case len(args) > len(names):
			return usagef(c.CommandPath(), "unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// noArgs accepts no arguments.
func noArgs() cobra.PositionalArgs { return exactArgs() }

func newVersion(e *env) *cobra.Command {
	var clientOnly bool
	c := e.command("version", "Print the versions of the command and of the server",
		`Prints the version and the commit of this command, and of the replica of the admin API that
answers. If none answers, the command says why and succeeds.`,
		"  gpuaas version\n  gpuaas version --client -o json", func(ctx context.Context, _ string) error {
			v := versions{Build: version.Read()}
			if !clientOnly {
				v.Server = serverVersion(ctx, e)
			}
			return e.print(v, func(w io.Writer) {
				fmt.Fprintln(w, "gpuaas", v.Build)
				if v.Server != nil {
					fmt.Fprintln(w, "server", *v.Server)
				}
			})
		})
	c.Flags().BoolVar(&clientOnly, "client", false, "print only the version of this command")
	return c
}

// versions are the versions of this command and of the server.
type versions struct {
	version.Build
	Server *version.Build `json:"server,omitempty"`
}

// versionLimit bounds the request for the version of the server.
const versionLimit = 3 * time.Second

// serverVersion returns the version of the server, or nil with a message.
func serverVersion(ctx context.Context, e *env) *version.Build {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	b, err := decode[version.Build](e.api().GetVersion(ctx, nil))
	if err != nil {
		e.message("the version of the server is not known: %s", err)
		return nil
	}
	return &b
}
