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
		Long: `Run N simulated nodes in one process, to load-test an installation. Every node
has its own certificate and TLS connection and runs the real agent. Only the host
is simulated: its facts, its workloads, and the time that tasks take.

The command registers and enrolls missing nodes, runs until it is interrupted, and
periodically prints one line with totals for all nodes:

  size           nodes in the fleet
  enrolled       agents that the API has accepted
  running        agents that are running
  polling        open long polls
  removed        nodes that an operator has removed
  offers         tasks received from the API
  works          task executions started; more than one per task is a defect
  repeated       destructive executions after the first one of an operation
  done, failed   results accepted by the API, by status
  late           results rejected because the lease had expired
  twice          results posted twice
  split          results posted twice that got two different responses
  result_p50     latency of the last 4,096 result requests, median
  result_p99     the same, 99th percentile
  rss_mib        resident memory of the process, in MiB
  kib_per_agent  resident memory added per agent, in KiB

The API's metric gpuaas_task_dispatch_seconds measures the time from enqueue to
dispatch.

--misbehave makes some of the nodes misbehave. It takes a comma-separated list of
NAME=SHARE, where SHARE is a percentage (5%), a fraction (0.05), or a number of
nodes (3):

  slow        tasks take between half and nine tenths of their time limit
  silent      the agent begins a task and goes silent until it is restarted
  duplicate   the agent posts each result twice, in parallel
  late        the agent reports each result after its lease has expired
  flapping    the agent and its connection restart every few seconds
  dies        the agent stops once a task is in its journal, and restarts later

--faults injects faults into the nodes' machines while they run. The file has the
faults as JSON, with the host names that each concerns; * stands for any text:

  {"reboot_seconds": 5, "faults": [{"hosts": ["fleet-000*"], "condition": C}]}

C is a condition as an agent reports it, for example:

  {"checker": "host_kernel", "reason": "PCIeError", "repair": "reboot"}

A reboot of the node ends its faults, and a reset of its GPUs those with the
repair reset_gpu. A fault with "sticky": true lasts until it leaves the file.

Identities and journals are stored in DIR/fleet, so a second run reuses the nodes
without enrolling them again. The agents log to DIR/log/fleet.log.`,
		Example: `  gpuaas dev fleet 100
  gpuaas dev fleet 1000 --misbehave slow=5%,silent=2%,flapping=3%`,
		Args: exactArgs("N"), RunE: func(c *cobra.Command, args []string) error { return runFleet(c, o, args[0]) },
	}
	f := c.Flags()
	f.String("prefix", "fleet", "prefix of the host names")
	f.String("sku", "cpu-dev", "SKU of new nodes; must be a SKU without GPUs")
	f.String("region", "local", "region of new nodes")
	f.Int("rack-size", 0, "nodes per rack, which is the label rack of new nodes; 0 sets no label")
	f.String("misbehave", "", "nodes that misbehave, as NAME=SHARE,…")
	f.String("faults", "", "`file` with the faults of the nodes' machines; the nodes read it again when it changes")
	f.Uint64("seed", 1, "random seed that selects the nodes that misbehave")
	f.String("task-time", "200ms", "simulated duration of a task, or a range such as 100ms..2s")
	f.Int("workloads", 0, "simulated workloads per node")
	f.Duration("restart-after", 2*time.Minute, "approximate time until a silent or stopped agent restarts")
	f.Duration("flap-every", 5*time.Second, "approximate time between the restarts of a flapping agent")
	f.Duration("report-every", 5*time.Second, "interval between report lines")
	f.String("log-level", "warn", "log level of the agents: debug, info, warn, or error")
	return c
}

// runFleet runs the fleet program in the foreground. It fails with the program's exit
// code.
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
	fmt.Fprintf(o.stderr, "the agents log to %s\n", log)
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
	return []string{"prefix", "sku", "region", "rack-size", "misbehave", "faults", "seed", "task-time", "workloads", "restart-after", "flap-every",
		"report-every", "log-level"}
}

// fleetArgs returns the fleet program's arguments: the flags that were set.
func fleetArgs(c *cobra.Command, n, state, log string) []string {
	args := []string{n, "--state=" + state, "--log=" + log}
	for _, name := range fleetFlags() {
		if f := c.Flag(name); f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}
