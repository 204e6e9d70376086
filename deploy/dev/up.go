package dev

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

type upOptions struct {
	*options
	detach bool
	from   int
	// onPostgres puts Temporal's state on the stack's Postgres.
	onPostgres bool
}

func newUp(shared *options) *cobra.Command {
	o := upOptions{options: shared}
	c := &cobra.Command{
		Use: "up", Short: "Start what is missing of the stack",
		Long: `Starts what is missing of the stack and waits until each part is healthy; a stack
of which parts were killed is whole again afterwards. Without --detach it stays
in the foreground and stops the stack when it is interrupted.

Ports: Temporal 7233, Web UI 8233, Vault 8200, admin API 8081, node API 8443,
metrics of worker 9090 and API 9091, and two free ones for Postgres and for the
metrics of Temporal. --ports-from N takes N, N+1, … in that order instead, so
that two stacks can run side by side.`,
		Example: `  gpuaas dev up
  gpuaas dev up --detach
  gpuaas dev up --detach --dir /tmp/second --ports-from 17000`,
		Args: takes(), RunE: func(c *cobra.Command, _ []string) error { return runUp(c, o) },
	}
	c.Flags().BoolVar(&o.detach, "detach", false, "return when the stack is up and leave it running")
	c.Flags().IntVar(&o.from, "ports-from", 0, "first of nine ports to use, instead of the usual ones")
	c.Flags().BoolVar(&o.onPostgres, "temporal-on-postgres", false,
		"of a new stack: an embedded Temporal keeps its state on the stack's Postgres, one partition for each queue (for benchmarks)")
	return c
}

func runUp(c *cobra.Command, o upOptions) error {
	ctx := c.Context()
	if o.from != 0 {
		if _, err := portsFrom(o.from); err != nil {
			return &UsageError{Command: c.CommandPath(), Message: err.Error()}
		}
	}
	s, err := newStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	s.onPostgres = o.onPostgres
	if err := s.raise(ctx, o.from); err != nil {
		return err
	}
	report, err := s.status(ctx)
	if err != nil {
		return err
	}
	if err := o.print(c, report, report.table); err != nil {
		return err
	}
	s.sayLinks(o.dir)
	if o.detach {
		return nil
	}
	return s.stay(ctx)
}

// raise makes the stack whole, alone on its folder.
func (s *stack) raise(ctx context.Context, from int) error {
	if err := s.layout.make(); err != nil {
		return err
	}
	unlock, err := s.layout.lock(ctx, s.talk)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.decide(ctx, from); err != nil {
		return err
	}
	for _, e := range []struct {
		part string
		server
	}{{partPostgres, s.record.Postgres}, {partVault, s.record.Vault}, {partTemporal, s.record.Temporal}} {
		if !e.owned() {
			fmt.Fprintf(s.talk, "using      %s at %s, as the environment says\n", e.part, e.Address)
		}
	}
	return s.up(ctx)
}

func (s *stack) sayLinks(dir string) {
	flag := dirFlag(dir)
	fmt.Fprintf(s.talk, "\n  FOR DEVELOPMENT ONLY: the Vault's keys, and every password, are in %s\n\n", s.layout.secretsDir())
	if s.record.WebUI != "" {
		fmt.Fprintf(s.talk, "  Web UI        %s\n", s.record.WebUI)
	}
	fmt.Fprintf(s.talk, "  in a shell    eval \"$(gpuaas dev env%[1]s)\"\n  logs          %[2]s\n  stop it       gpuaas dev down%[1]s\n\n",
		flag, s.layout.logDir())
}

// watchEvery is how often the foreground looks whether all parts still run.
const watchEvery = time.Second

// stay keeps the stack in the foreground until ctx ends, then stops it. It ends
// too when the stack was stopped from elsewhere.
func (s *stack) stay(ctx context.Context) error {
	fmt.Fprintln(s.talk, "the stack runs until this command is interrupted (Ctrl-C)")
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	said := map[identity]bool{}
	for {
		select {
		case <-ctx.Done():
			return s.lower(context.WithoutCancel(ctx))
		case <-tick.C:
		}
		runs, err := s.layout.started()
		if err != nil {
			return err
		}
		if len(runs) == 0 {
			fmt.Fprintln(s.talk, "the stack was stopped")
			return nil
		}
		for _, r := range runs {
			if !r.alive() && !said[r.identity] {
				said[r.identity] = true
				fmt.Fprintf(s.talk, "%s ended by itself (log: %s); gpuaas dev up --detach starts it again\n", r.Part, s.layout.logPath(r.Part))
			}
		}
	}
}
