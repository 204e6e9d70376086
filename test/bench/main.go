package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/test/stack"
)

const help = `usage: go run ./test/bench [flags] NAME…

Start a stack for each benchmark, print a table and write
bench/results/NAME.json. Run it from the repository root, after ./task build, on
an otherwise idle machine.

  store   enqueue, claim and complete of a step against three plain transactions
  idle    an idle node agent against an idle Temporal worker process
  step    a step on a node against a plain asynchronous activity
  parked  memory and wakes of waiting agents, and a simultaneous reconnection,
          against a minimal server
  peer    1,000 nodes, idle and under load, against a worker per node
  all     all benchmarks

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the program's flags.
type options struct {
	bin, results string
	// rate is the number of jobs per second of peer.
	rate int
	// small reduces every size, to verify the benchmark instead of measuring.
	small bool
	// nodes overrides the number of nodes; 0 keeps the default.
	nodes int
	// keep leaves the stack running.
	keep bool
}

// bench is one benchmark.
type bench struct {
	name string
	// size is the number of nodes, small that of a smoke test.
	size, small int
	// flags are additional flags for the stack.
	flags []string
	run   func(ctx context.Context, e *env) error
}

func benches() []bench {
	onPostgres := []string{"--temporal-on-postgres"}
	return []bench{
		{"store", 1000, 32, nil, benchStore},
		{"idle", 1, 1, nil, benchIdle},
		{"step", 64, 4, onPostgres, benchStep},
		{"parked", 10_000, 50, nil, benchParked},
		{"peer", 1000, 8, onPostgres, benchPeer},
	}
}

func run(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer) int {
	if len(args) > 0 {
		if role, ok := roles()[args[0]]; ok {
			if err := role(ctx, args[1:], in, out); err != nil && ctx.Err() == nil {
				fmt.Fprintf(stderr, "%s: %v\n", args[0], err)
				return 1
			}
			return 0
		}
	}
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, help); f.PrintDefaults() }
	f.StringVar(&o.bin, "bin", "bin/gpuaas", "the gpuaas program; the others must be next to it")
	f.StringVar(&o.results, "results", "bench/results", "folder for the JSON files")
	f.BoolVar(&o.small, "small", false, "small sizes and short times, to verify that the benchmarks work")
	f.IntVar(&o.nodes, "nodes", 0, "number of nodes (default: the benchmark's own)")
	f.IntVar(&o.rate, "rate", 20, "jobs per second of peer")
	f.BoolVar(&o.keep, "keep", false, "leave the stack running")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if o.rate < 1 {
		fmt.Fprintln(stderr, "-rate must be at least 1")
		return 2
	}
	chosen, err := choose(f.Args())
	if err != nil {
		fmt.Fprintln(stderr, err)
		f.Usage()
		return 2
	}
	for _, b := range chosen {
		if err := b.measure(ctx, o, out, stderr); err != nil {
			fmt.Fprintf(stderr, "bench %s: %v\n", b.name, err)
			return 1
		}
	}
	return 0
}

func choose(names []string) ([]bench, error) {
	if slices.Equal(names, []string{"all"}) {
		return benches(), nil
	}
	var chosen []bench
	for _, name := range names {
		i := slices.IndexFunc(benches(), func(b bench) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no benchmark %q", name)
		}
		chosen = append(chosen, benches()[i])
	}
	if len(chosen) == 0 {
		return nil, errors.New("name a benchmark")
	}
	return chosen, nil
}

// env is the environment of one benchmark.
type env struct {
	options
	*stack.Stack
	*report
	messages io.Writer
	size     int
	// roleEnv is additional environment for roles.
	roleEnv []string
	// folder contains temporary files of the run.
	folder string
}

// measure runs one benchmark on its own stack.
func (b bench) measure(ctx context.Context, o options, out, stderr io.Writer) (err error) {
	e := &env{options: o, messages: stderr, size: b.size}
	if o.small {
		e.size = b.small
	}
	if o.nodes > 0 {
		e.size = o.nodes
	}
	if e.folder, err = os.MkdirTemp("", "gpuaas-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(e.folder)) }()
	if err := os.Chmod(e.folder, 0o755); err != nil { //nolint:gosec // Postgres runs as another user
		return err
	}
	e.report = newReport(b.name, e.size)
	if err := e.up(ctx, "stack", b.flags); err != nil {
		return errors.Join(err, e.down())
	}
	if err := b.run(ctx, e); err != nil {
		return errors.Join(err, e.down())
	}
	// A failed cleanup does not invalidate the results.
	return errors.Join(e.finish(out, o.results), e.down())
}

// up starts a stack in a folder with that name.
func (e *env) up(ctx context.Context, name string, flags []string) error {
	bin, err := filepath.Abs(e.bin)
	if err != nil {
		return err
	}
	e.logf("starting a stack %s", strings.Join(flags, " "))
	e.Stack, err = stack.Up(ctx, bin, filepath.Join(e.folder, name), flags...)
	return err
}

func (e *env) down() error {
	if e.keep {
		e.logf("the stack is kept in %s", e.Dir)
		return nil
	}
	return e.Down()
}

func (e *env) logf(format string, args ...any) {
	fmt.Fprintf(e.messages, "%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// span returns the duration of a measurement: d, or a second in a small run.
func (e *env) span(d time.Duration) time.Duration {
	if e.small {
		return min(d, time.Second)
	}
	return d
}

// rounds returns how often a measurement is repeated: once in a small run.
func (e *env) rounds() int {
	if e.small {
		return 1
	}
	return repetitions
}

// pids returns the processes of the stack's parts by name.
func (e *env) pids(ctx context.Context, names ...string) (map[string]int, error) {
	parts, err := e.Parts(ctx)
	out := map[string]int{}
	for _, name := range names {
		if out[name] = parts[name].PID; err == nil && out[name] == 0 {
			err = fmt.Errorf("the stack's %s is not running", name)
		}
	}
	return out, err
}

// stopParts stops parts of the stack that would disturb, in the given order.
func (e *env) stopParts(ctx context.Context, names ...string) error {
	pids, err := e.pids(ctx, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := syscall.Kill(pids[name], syscall.SIGTERM); err != nil {
			return fmt.Errorf("stopping %s: %w", name, err)
		}
		for syscall.Kill(pids[name], 0) == nil {
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
