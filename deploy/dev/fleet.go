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

// fleetStopTimeout is how long an interrupted fleet may take to stop.
const fleetStopTimeout = 30 * time.Second

func newFleet(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "fleet N", Short: "Run N simulated nodes with real agents",
		Long: `Run N simulated nodes in one process, to measure or to test an installation. Each
has a real certificate, its own TLS connection and the agent's own code; only its
facts, its workloads and the duration of its tasks are simulated. Missing nodes
are registered and enrolled first. The command runs until it is interrupted and
periodically prints one line about all nodes:

  size        nodes of the fleet; removed: those that an operator removed
  running     agents that run; enrolled: those that the API accepted
  polling     long polls waiting at the API
  offers      tasks dispatched; works: executions started; done, failed, late:
              results, late ones having arrived after the lease expired
  twice       results posted twice; split: those with different responses
  result_p50  latency of the API's response to a result, over the last 4096; the
              time from enqueue to dispatch is the API's own metric,
              gpuaas_task_dispatch_seconds
  rss_mib     memory of the process; kib_per_agent: memory added per agent

--misbehave takes NAME=SHARE,…, where a share is 5%, 0.05 or a number of nodes:

  slow        tasks take between half and nine tenths of their time limit
  silent      receives a task and is silent until its agent is restarted
  duplicate   posts each result twice, in parallel
  late        reports each result after its lease has expired
  flapping    restarts its connection and agent every few seconds
  dies        stops once a task is in its journal, and is restarted later

Identities and journals are in DIR/fleet, so that a second run uses the same nodes
and enrolls none of them again. The agents' logs are in DIR/log.`,
		Example: `  gpuaas dev fleet 100
  gpuaas dev fleet 1000 --misbehave slow=5%,silent=2%,flapping=3%`,
		Args: exactArgs("N"), RunE: func(c *cobra.Command, args []string) error { return runFleet(c, o, args[0]) },
	}
	f := c.Flags()
	f.String("prefix", "fleet", "prefix of every host name")
	f.String("sku", "cpu-dev", "SKU of newly registered nodes; must have no GPUs")
	f.String("region", "local", "region of newly registered nodes")
	f.String("misbehave", "", "share of nodes per kind of misbehavior")
	f.Uint64("seed", 1, "selects the nodes that misbehave")
	f.String("task-time", "200ms", "simulated duration of a task: 200ms or 100ms..2s")
	f.Int("workloads", 0, "simulated workloads per node")
	f.Duration("restart-after", 2*time.Minute, "approximate time until a silent or dead agent is restarted")
	f.Duration("flap-every", 5*time.Second, "approximate lifetime of a flapping agent")
	f.Duration("report-every", 5*time.Second, "report interval")
	f.String("log-level", "warn", "log level of the agents: debug, info, warn or error")
	return c
}

// runFleet runs the fleet program in the foreground and returns its exit code.
func runFleet(c *cobra.Command, o *options, n string) error {
	ctx := c.Context()
	s, err := openStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	path, err := s.programs.path(fleetBinary)
	if err != nil {
		return err
	}
	token, err := ensureSecret(s.layout.adminToken())
	if err != nil {
		return err
	}
	log := s.layout.logPath("fleet")
	fmt.Fprintf(o.stderr, "agent log: %s\n", log)
	cmd := exec.CommandContext(ctx, path, fleetArgs(c, n, s.layout.fleetDir(), log)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.record.processEnv(s.record.shell(token)), o.stdout, o.stderr
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, fleetStopTimeout
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return &EndedError{Program: fleetBinary, Code: exit.ExitCode()}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// fleetFlags are the flags of the fleet program, which validates them.
func fleetFlags() []string {
	return []string{"prefix", "sku", "region", "misbehave", "seed", "task-time", "workloads", "restart-after", "flap-every",
		"report-every", "log-level"}
}

// fleetArgs passes on the flags that were set.
func fleetArgs(c *cobra.Command, n, state, log string) []string {
	args := []string{n, "--state=" + state, "--log=" + log}
	for _, name := range fleetFlags() {
		if f := c.Flag(name); f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}
