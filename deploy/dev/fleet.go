package dev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// fleetPatience is how long an interrupted fleet may take to end.
const fleetPatience = 30 * time.Second

func newFleet(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "fleet N", Short: "Run N pretended nodes with real agents",
		Long: `Runs N nodes in one process, to size and to try an installation: each has a real
certificate, a TLS connection of its own and the agent's own code; only the work
that they are given is pretended. Nodes that are missing are registered and
enrolled first. It runs until it is interrupted and prints a line about all of
them now and then:

  running     agents that run now; enrolled those that the API accepted
  polling     long polls that wait in the API
  offers      tasks handed over; works how often the work of one was begun; done,
              failed and late what became of them, late being results that came
              after the lease was lost
  twice       results posted twice; split those that were answered differently
  result_p50  how long the API took to answer a result, of the newest 4096; the
              time from a task to its hand-over is the API's own metric,
              gpuaas_task_dispatch_seconds
  rss_mib     memory of the fleet's process; kib_per_agent what agents added

--misbehave takes NAME=SHARE,…, a share being 5%, 0.05 or a number of nodes:

  slow        works take between half and nine tenths of their time limit
  silent      takes a task and is not heard of until its agent is restarted
  duplicate   posts each result twice, in parallel
  late        reports each result after its lease ended
  flapping    loses connection and agent every few seconds
  dies        stops once a task is in its journal and is restarted later

Identities and journals are kept in DIR/fleet, so that a second run is of the
same nodes and enrols nobody twice. What the agents log is in DIR/log.`,
		Example: `  gpuaas dev fleet 100
  gpuaas dev fleet 1000 --misbehave slow=5%,silent=2%,flapping=3%`,
		Args: takes("N"), RunE: func(c *cobra.Command, args []string) error { return runFleet(c, o, args[0]) },
	}
	f := c.Flags()
	f.String("prefix", "fleet", "begins every host name")
	f.String("sku", "cpu-dev", "SKU of nodes that must be registered; one without GPUs")
	f.String("region", "local", "region of nodes that must be registered")
	f.String("misbehave", "", "who misbehaves how")
	f.Uint64("seed", 1, "decides who misbehaves")
	f.String("task-time", "200ms", "pretended work of a task: 200ms or 100ms..2s")
	f.Duration("heartbeat", 0, "interval of the agents' heartbeats (default the agent's, 30s)")
	f.Int("workloads", 0, "pretended workloads of each node")
	f.Duration("restart-after", 2*time.Minute, "about how long a silent or dead agent stays away")
	f.Duration("flap-every", 5*time.Second, "about how long a flapping agent lives")
	f.Duration("report-every", 5*time.Second, "interval of the report's lines")
	f.String("log-level", "warn", "of the agents' logs: debug, info, warn or error")
	return c
}

// runFleet runs the fleet's program in the foreground. What it says is this
// command's, and its exit code too.
func runFleet(c *cobra.Command, o *options, n string) error {
	ctx := c.Context()
	s, err := openStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	path, err := s.program(fleetBinary)
	if err != nil {
		return err
	}
	token, err := ensureSecret(s.layout.adminToken())
	if err != nil {
		return err
	}
	log := s.layout.logPath("fleet")
	fmt.Fprintf(o.stderr, "log of the agents: %s\n", log)
	cmd := exec.CommandContext(ctx, path, fleetArgs(c, n, s.layout.fleetDir(), log)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.record.processEnv(s.record.shell(token)), o.stdout, o.stderr
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, fleetPatience
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return &EndedError{Program: fleetBinary, Code: exit.ExitCode()}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// fleetFlags are those of the fleet's program, which checks their values.
func fleetFlags() []string {
	return []string{"prefix", "sku", "region", "misbehave", "seed", "task-time", "heartbeat", "workloads", "restart-after", "flap-every",
		"report-every", "log-level"}
}

// fleetArgs hands on the flags that were given.
func fleetArgs(c *cobra.Command, n, state, log string) []string {
	args := []string{n, "--state=" + state, "--log=" + log}
	for _, name := range fleetFlags() {
		if f := c.Flag(name); f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}
