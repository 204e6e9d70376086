package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

// Program describes one daemon.
type Program struct {
	// Name is the name of the binary.
	Name string
	// About is the first paragraph of --help: complete sentences.
	About string
	// Config points to the program's configuration, a struct that embeds Common
	// and is filled as Load says. Values it holds already are defaults.
	Config Config
	// Detached is set if the program uses neither Temporal nor the databases of the control plane, so
	// that its reference does not describe them.
	Detached bool
	// Flags declares the program's own flags. Defaults to none.
	Flags func(*flag.FlagSet)
	// Start opens the program's parts and starts its goroutines. It returns nil
	// when the program is ready. The context ends when the program must finish its
	// work, which is later than the stop signal: see Process.
	Start func(ctx context.Context, p *Process) error
}

// Config is a program's configuration: a pointer to a struct that embeds Common.
type Config interface{ common() *Common }

// Main runs the program until ctx ends and returns its exit code. args are the
// arguments after the program's name. With --help or version it prints and
// returns at once.
func Main(ctx context.Context, p Program, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	if p.Flags != nil {
		p.Flags(flags)
	}
	showVersion := flags.Bool("version", false, "print the version and exit")
	isReady := flags.Bool("ready", false, readyUsage)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		p.render(stdout, "help", flags)
		return schema.ExitDone
	case err == nil && (*showVersion || flags.NArg() == 1 && flags.Arg(0) == "version"):
		fmt.Fprintln(stdout, p.Name, version.Read())
		return schema.ExitDone
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if err == nil {
		err = Load(p.Config, getenv)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\nRun '%s --help' for flags and variables.\n", p.Name, err, p.Name)
		return schema.ExitUsage
	}
	if *isReady {
		return p.ready(ctx, stderr)
	}
	return p.run(ctx, stderr)
}

func (p Program) run(ctx context.Context, stderr io.Writer) int {
	c := p.Config.common()
	log := slog.New(traceLogs{slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: c.LogLevel})}).
		With(slog.String("service", p.Name))
	proc := newProcess(c, log)
	if p.Detached {
		proc.Metrics.detach(proc.Registry)
	}
	spans, err := exporter(ctx)
	if err == nil {
		proc.trace(ctx, p.Name, spans)
		err = proc.run(ctx, p.Start)
	}
	if err != nil {
		log.Error("failed", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
		return schema.ExitFailed
	}
	log.Info("stopped")
	return schema.ExitDone
}
