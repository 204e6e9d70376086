package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

const help = `gpuaas-fleet runs N simulated nodes with real agents, to size and test an
installation. On the stack of "gpuaas dev", start it with: gpuaas dev fleet N

Usage: gpuaas-fleet N [flags]

Flags:
  --state DIR            folder of identities and journals (default ./fleet)
  --prefix TEXT          prefix of every host name (default fleet)
  --sku, --region        of nodes that must be registered (default cpu-dev, local)
  --misbehave LIST       NAME=SHARE,…: slow, silent, duplicate, late, flapping,
                         dies; a share is 5%, 0.05 or a number of nodes
  --seed N               selects the nodes that misbehave (default 1)
  --faults FILE          faults of the nodes' machines, as JSON; read again when
                         the file changes
  --task-time SPAN       simulated work of a task: 200ms or 100ms..2s (default 200ms)
  --workloads N          simulated workloads of each node (default 0)
  --restart-after D      how long a silent or dead agent stays down (default 2m)
  --flap-every D         how long a flapping agent lives (default 5s)
  --report-every D       interval of the report's lines (default 5s)
  --log FILE, --log-level L   where the agents' logs go (default none, warn)

Environment:
  GPUAAS_API_URL, GPUAAS_API_TOKEN (or GPUAAS_API_TOKEN_FILE)   the admin API
  GPUAAS_NODE_API_URL    the node API, if it differs from the bundles'

Exit codes: 0 interrupted, 1 failed, 2 usage, 3 refused, 6 the admin API is
unreachable.
`

// gcPercent saves memory: an idle agent allocates almost nothing, and the default
// would allow as much garbage as there is state.
const gcPercent = 25

// errHelp means that the help was requested.
var errHelp = errors.New("help")

// Main runs the program and returns its exit code (schema.Exit*). The report goes to
// stdout, messages and errors to stderr.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if len(args) == 1 && (args[0] == "version" || args[0] == "--version") {
		fmt.Fprintln(stdout, "gpuaas-fleet", version.Read())
		return schema.ExitDone
	}
	err := run(ctx, args, getenv, stdout, stderr)
	if errors.Is(err, errHelp) {
		fmt.Fprint(stdout, help)
		return schema.ExitDone
	}
	if err == nil {
		return schema.ExitDone
	}
	e := schema.AsError(err)
	fmt.Fprintf(stderr, "error: %s (%s)\n", err, strings.TrimSuffix(string(e.Kind)+": "+e.Reason, ": "))
	if e.Next != "" {
		fmt.Fprintf(stderr, "next:  %s\n", e.Next)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return schema.ExitUsage
	}
	return e.Kind.Info().Exit
}

// usageError is an error in the command line.
type usageError struct{ error }

// Unwrap returns the *schema.Error.
func (u usageError) Unwrap() error { return u.error }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	c, logs, err := parse(args, getenv)
	if errors.Is(err, errHelp) {
		return err
	}
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return usageError{err}
	}
	c.Log = slog.New(slog.DiscardHandler)
	if logs.file != "" {
		f, err := os.OpenFile(logs.file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("opening the log: %w", err)
		}
		defer f.Close() //nolint:errcheck // every line is written at once
		c.Log = slog.New(slog.NewJSONHandler(f, &slog.HandlerOptions{Level: logs.level}))
	}
	return Run(ctx, c, stdout, stderr)
}

// logging is the destination and level of the agents' logs.
type logging struct {
	file  string
	level slog.Level
}

// parse reads the command line and the environment.
func parse(args []string, getenv func(string) string) (c Config, logs logging, err error) {
	logs.level = slog.LevelWarn
	c.TaskTime = Span{200 * time.Millisecond, 200 * time.Millisecond}
	f := flag.NewFlagSet("gpuaas-fleet", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.State, "state", "fleet", "")
	f.StringVar(&c.Prefix, "prefix", "fleet", "")
	f.StringVar(&c.SKU, "sku", "cpu-dev", "")
	f.StringVar(&c.Region, "region", "local", "")
	f.IntVar(&c.RackSize, "rack-size", 0, "")
	f.Uint64Var(&c.Seed, "seed", 1, "")
	f.IntVar(&c.Workloads, "workloads", 0, "")
	f.DurationVar(&c.RestartAfter, "restart-after", 2*time.Minute, "")
	f.DurationVar(&c.FlapEvery, "flap-every", 5*time.Second, "")
	f.DurationVar(&c.ReportEvery, "report-every", 5*time.Second, "")
	f.StringVar(&c.Faults, "faults", "", "")
	f.StringVar(&logs.file, "log", "", "")
	f.TextVar(&logs.level, "log-level", slog.LevelWarn, "")
	f.Func("misbehave", "", func(text string) (err error) { c.Misbehave, err = ParseShares(text); return err })
	f.Func("task-time", "", func(text string) (err error) { c.TaskTime, err = ParseSpan(text); return err })
	if c.Size, err = size(f, args); err != nil {
		return c, logs, err
	}
	c.AdminURL = strings.TrimRight(getenv("GPUAAS_API_URL"), "/")
	c.NodeURL = strings.TrimRight(getenv("GPUAAS_NODE_API_URL"), "/")
	c.Token, err = token(getenv)
	return c, logs, err
}

// size reads the flags and the one argument, in any order.
func size(f *flag.FlagSet, args []string) (n int, err error) {
	seen := false
	for {
		err := f.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0, errHelp
		case err != nil:
			return 0, invalid("flag", "%v", err)
		case f.NArg() == 0 && !seen:
			return 0, invalid("size", "missing argument N: the number of nodes")
		case f.NArg() == 0:
			return n, nil
		case seen:
			return 0, invalid("size", "unexpected argument %q", f.Arg(0))
		}
		if n, err = strconv.Atoi(f.Arg(0)); err != nil {
			return 0, invalid("size", "N %q: want a number of nodes", f.Arg(0))
		}
		seen, args = true, f.Args()[1:]
	}
}

// token reads the bearer token. It is not a flag, because flags are visible in the
// list of processes.
func token(getenv func(string) string) (string, error) {
	path := getenv("GPUAAS_API_TOKEN_FILE")
	if t := getenv("GPUAAS_API_TOKEN"); t != "" || path == "" {
		return t, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", invalid("token", "reading GPUAAS_API_TOKEN_FILE: %v", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
