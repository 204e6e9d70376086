package dev

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/webui"
)

type upOptions struct {
	*options
	detach             bool
	from               int
	temporalOnPostgres bool
}

func newUp(shared *options) *cobra.Command {
	o := upOptions{options: shared}
	c := &cobra.Command{
		Use: "up", Short: "Start the stack, or the parts of it that are not running",
		Long: `Start the parts of the stack that are not running, and wait until every part is
healthy. If Vault is sealed, the command unseals it. Without --detach, the command
stays in the foreground and stops the stack when it is interrupted.

The stack listens on loopback addresses only: Temporal on port 7233, its Web UI on
8233, Vault on 8200, the admin API on 8081, and the node API on 8443. The worker
serves metrics on 9090 and the API on 9091. Postgres and Temporal's metrics use the
first free ports from 5433 and 9095. To run a second stack, use another --dir and
--ports-from N: the stack then uses ports N to N+8.`,
		Example: `  gpuaas dev up
  gpuaas dev up --detach
  gpuaas dev up --detach --dir /tmp/second --ports-from 17000`,
		Args: exactArgs(), RunE: func(c *cobra.Command, _ []string) error { return runUp(c, o) },
	}
	c.Flags().BoolVar(&o.detach, "detach", false, "return when the stack is up, and leave it running")
	c.Flags().IntVar(&o.from, "ports-from", 0, "first of nine consecutive `port`s to use instead of the default ports")
	c.Flags().BoolVar(&o.temporalOnPostgres, "temporal-on-postgres", false,
		"when creating a stack, store Temporal's state in the stack's Postgres and use one partition per task queue (for benchmarks)")
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
	s.temporalOnPostgres = o.temporalOnPostgres
	s.upCommand = o.command()
	if err := s.start(ctx, o.from); err != nil {
		return err
	}
	report, err := s.status(ctx)
	if err != nil {
		return err
	}
	if err := o.print(report, report.table); err != nil {
		return err
	}
	s.printLinks(o.dir)
	if o.detach {
		return nil
	}
	return s.runForeground(ctx, upCommand(o.dir, "--detach"))
}

// command is the command line with these options, without the ports.
func (o upOptions) command() string {
	var flags []string
	if o.detach {
		flags = append(flags, "--detach")
	}
	if o.temporalOnPostgres {
		flags = append(flags, "--temporal-on-postgres")
	}
	return upCommand(o.dir, flags...)
}

// start starts all missing parts while holding the folder's lock.
func (s *stack) start(ctx context.Context, from int) error {
	if err := s.layout.make(); err != nil {
		return err
	}
	unlock, err := s.layout.lock(ctx, s.messages)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.configure(ctx, from); err != nil {
		return err
	}
	for _, e := range []struct {
		part string
		server
	}{{partPostgres, s.record.Postgres}, {partVault, s.record.Vault}, {partTemporal, s.record.Temporal}} {
		switch {
		case !e.owned():
			fmt.Fprintf(s.messages, "using      %s at %s (from the environment)\n", e.part, e.Address)
		case e.Kind == kindPath && e.Program != "":
			fmt.Fprintf(s.messages, "using      %s of this machine: %s\n", e.part, e.Program)
		}
	}
	return s.startParts(ctx)
}

func (s *stack) printLinks(dir string) {
	flag := dirFlag(dir)
	fmt.Fprintf(s.messages, "\n  FOR DEVELOPMENT ONLY: Vault's keys and all passwords are in %s\n\n", s.layout.secretsDir())
	if s.record.WebUI != "" {
		fmt.Fprintf(s.messages, "  Web UI        %s\n", s.record.WebUI)
		for _, v := range webui.Views() {
			fmt.Fprintf(s.messages, "    %s\n      %s\n", v.Title, v.URL(s.record.WebUI+"/namespaces/"+s.record.Namespace+"/workflows"))
		}
	}
	fmt.Fprintf(s.messages, "  console       http://localhost:%d/console/\n    log in with the token that this prints: eval \"$(gpuaas dev env%s)\"; echo \"$GPUAAS_API_TOKEN\"\n",
		s.record.Ports.Admin, flag)
	for _, a := range []struct{ what, address string }{
		{"admin API", s.record.adminURL()}, {"node API", s.record.nodeURL()},
		{"metrics", "http://" + loopback(s.record.Ports.APIMetrics) + "/metrics (API), http://" + loopback(s.record.Ports.WorkerMetrics) + "/metrics (worker)"},
	} {
		fmt.Fprintf(s.messages, "  %-13s %s\n", a.what, a.address)
	}
	fmt.Fprintf(s.messages, "  use it        eval \"$(gpuaas dev env%[1]s)\"\n  logs          %[2]s\n  stop it       gpuaas dev down%[1]s   (keeps the state; --wipe deletes it)\n\n",
		flag, s.layout.logDir())
}

// watchInterval is how often the foreground command checks the processes.
const watchInterval = time.Second

// runForeground waits until ctx ends, then stops the stack. It also returns when
// another command stops the stack. restart is the command that starts parts that exited.
func (s *stack) runForeground(ctx context.Context, restart string) error {
	fmt.Fprintln(s.messages, "press Ctrl-C to stop the stack")
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	reported := map[identity]bool{}
	for {
		select {
		case <-ctx.Done():
			return s.stop(context.WithoutCancel(ctx))
		case <-tick.C:
		}
		runs, err := s.layout.processes().all()
		if err != nil {
			return err
		}
		if len(runs) == 0 {
			fmt.Fprintln(s.messages, "the stack was stopped")
			return nil
		}
		for _, r := range runs {
			if !r.alive() && !reported[r.identity] {
				reported[r.identity] = true
				fmt.Fprintf(s.messages, "%s exited (log: %s); %s restarts it\n", r.Part, s.layout.logPath(r.Part), restart)
			}
		}
	}
}
