package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
)

const help = `gpuaas-node-agent runs on a GPU node and executes the tasks of its control plane.

Usage: gpuaas-node-agent COMMAND

Commands:
  run                enroll if needed, then run tasks until stopped
  enroll             enroll once and print the result
  status [-o json]   show the state folder; makes no request to the node API
  doctor [-o json]   find what keeps the node from working, who can correct it, and the
                     next step; changes nothing on the node. --bundle FILE also writes
                     the evidence to a new tar.gz archive
  version            print the version

Configuration comes from the environment and from the file that
GPUAAS_NODE_AGENT_ENV_FILE names (default /etc/gpuaas/node-agent.env);
the environment wins:
  GPUAAS_NODE_ID, GPUAAS_ENV, GPUAAS_API_URL (https://host[:port]),
  GPUAAS_ENROLLMENT_TOKEN, GPUAAS_TASK_SIGNING_PUBKEYS, GPUAAS_CA_BUNDLE_PATH,
  GPUAAS_NODE_CERT_CA_BUNDLE_PATH, GPUAAS_CERT_PATH, GPUAAS_KEY_PATH,
  GPUAAS_STATE_DIR, GPUAAS_WORKLOAD_DRIVER (systemd|docker|kubernetes|none, or
  several: docker,kubernetes), GPUAAS_WORKLOAD_SLICE, GPUAAS_WORKLOAD_LABEL,
  DOCKER_HOST (unix:///path), GPUAAS_DOCKER_STOP_DAEMON (true|false),
  GPUAAS_KUBECONFIG, GPUAAS_KUBERNETES_NODE, GPUAAS_KUBERNETES_STOP_UNIT,
  GPUAAS_KUBERNETES_VIP_LEASE, GPUAAS_NVIDIA_SMI, GPUAAS_RELEASE_PUBKEYS,
  GPUAAS_HEALTH_CHECKS (all|none, or checks to switch off: -gpu_fan,-host_clock),
  GPUAAS_BURN_IN (/path/of/program arguments), GPUAAS_ARTIFACTS (files whose
  digests are reported: /path/of/file=name, separated by commas)

Examples:
  gpuaas-node-agent run
  GPUAAS_NODE_AGENT_ENV_FILE=./node.env gpuaas-node-agent enroll
  gpuaas-node-agent status -o json
  gpuaas-node-agent doctor --bundle gpu-17.tar.gz
  gpuaas-node-agent version

Exit codes: 0 done (also when the node was removed), 1 failed, or doctor found
a fault, 2 usage or configuration, 3 refused, 6 the node API is unreachable.
`

// Extras are what a program adds to the agent. The agent of production has none.
type Extras struct {
	// Drivers are further workload drivers that GPUAAS_WORKLOAD_DRIVER may name.
	Drivers map[string]workload.Maker
	// Simulate replaces dependencies of the agent that the command run starts. Nil replaces none.
	Simulate func(ctx context.Context, c Config, d *Deps) error
}

// Main runs the program and returns its exit code (schema.Exit*). Results go to stdout,
// logs and errors to stderr.
func Main(ctx context.Context, args, env []string, stdout, stderr io.Writer, extras Extras) int {
	p := program{env: env, stdout: stdout, stderr: stderr, extras: extras}
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return schema.ExitUsage
	}
	name := args[0]
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	commands := map[string]func(context.Context) error{
		"run": p.run, "enroll": p.enroll, "version": p.version, "--version": p.version,
		"status": func(ctx context.Context) error { return p.status(ctx, f.Lookup("o").Value.String()) },
		"doctor": func(ctx context.Context) error {
			return p.doctor(ctx, f.Lookup("o").Value.String(), f.Lookup("bundle").Value.String())
		},
	}
	if name == "status" || name == "doctor" {
		f.String("o", "table", "table or json")
	}
	if name == "doctor" {
		f.String("bundle", "", "file to write")
	}
	command, ok := commands[name]
	switch {
	case slices.Contains([]string{"help", "-h", "--help", "-help"}, name):
		return p.exit(flag.ErrHelp)
	case !ok:
		return p.exit(usageError{fmt.Errorf("unknown command %q; see gpuaas-node-agent --help", name)})
	}
	err := f.Parse(args[1:])
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if err != nil {
		return p.exit(usageError{err})
	}
	return p.exit(command(ctx))
}

type program struct {
	env            []string
	stdout, stderr io.Writer
	extras         Extras
}

// load reads the configuration; it is not validated.
func (p program) load() (Config, error) {
	c, err := LoadConfig(p.env)
	c.Drivers = p.extras.Drivers
	return c, err
}

// usageError is a mistake in the command line or the configuration.
type usageError struct{ error }

// Unwrap keeps flag.ErrHelp findable.
func (u usageError) Unwrap() error { return u.error }

func (p program) exit(err error) int {
	if err == nil {
		return schema.ExitDone
	}
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.stdout, help)
		return schema.ExitDone
	}
	fmt.Fprintln(p.stderr, "gpuaas-node-agent:", err)
	e := schema.AsError(err)
	if e.Next != "" {
		fmt.Fprintln(p.stderr, "next:", e.Next)
	}
	if _, usage := errors.AsType[usageError](err); usage {
		return schema.ExitUsage
	}
	return e.Kind.Info().Exit
}

// agent makes the configured agent.
func (p program) agent(d Deps) (*Agent, error) {
	c, err := p.load()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, usageError{err}
	}
	d.Log = p.log()
	return New(c, d)
}

// run runs the agent, in another release than this one if that is the one that must run. An
// agent that cannot be configured fails before a release is tried.
func (p program) run(ctx context.Context) error {
	running, err := release.RunningOf(p.env)
	if err != nil {
		return err
	}
	if err := p.launch(running); err != nil {
		return err
	}
	d := Deps{Reload: p.load, Ballast: true, Running: running, Artifacts: p.artifacts()}
	if err := p.simulate(ctx, &d); err != nil {
		return err
	}
	a, err := p.agent(d)
	if err != nil {
		return err
	}
	defer a.Close()
	err = a.Run(ctx)
	if errors.Is(err, ErrReplaced) {
		return release.Restart(running, p.commandLine(), p.env)
	}
	return err
}

// artifacts returns what reads the artifacts of this machine. The configuration was checked.
func (p program) artifacts() func(context.Context) map[string]string {
	binary, _ := os.Executable() // without it, the digest of the binary is missing
	c, err := p.load()
	if err != nil {
		return nil
	}
	read, _ := c.artifacts(binary)
	return read
}

// simulate replaces dependencies if the program simulates the machine.
func (p program) simulate(ctx context.Context, d *Deps) error {
	if p.extras.Simulate == nil {
		return nil
	}
	c, err := p.load()
	if err != nil {
		return usageError{err}
	}
	return p.extras.Simulate(ctx, c, d)
}

// launch starts the release that must run, unless this process is it.
func (p program) launch(running release.Running) error {
	c, err := p.load()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return usageError{err}
	}
	return release.Launcher{State: disk.At(c.StateDir), Running: running, Args: p.commandLine(), Env: p.env, Log: p.log()}.Launch()
}

// commandLine is that of the command run, which has no arguments.
func (p program) commandLine() []string { return []string{"gpuaas-node-agent", "run"} }

func (p program) log() *slog.Logger { return slog.New(slog.NewJSONHandler(p.stderr, nil)) }

// enroll makes one pass of the identity manager; it reports a node that is already
// enrolled.
func (p program) enroll(ctx context.Context) error {
	a, err := p.agent(Deps{Workloads: workload.Unmanaged{}})
	if err != nil {
		return err
	}
	defer a.Close()
	out := a.ReconcileIdentity(ctx)
	id := a.identity.Current()
	switch {
	case out.Removed:
		_, err = fmt.Fprintln(p.stdout, "the node is removed")
		return err
	case id == nil || out.Err != nil && !out.Ready:
		return cmp.Or(out.Err, identity.ErrNone)
	}
	verb, ok := map[identity.Action]string{identity.ActEnroll: "enrolled", identity.ActRecover: "recovered", identity.ActRenew: "renewed"}[out.Action]
	if !ok || out.Err != nil {
		verb = "already enrolled"
	}
	_, err = fmt.Fprintf(p.stdout, "%s: %s\nserial %s, issuer %s, expires %s\n", verb, id.Facts.URI,
		id.Facts.Serial, id.Facts.Issuer, text.FormatTime(id.Facts.NotAfter))
	return err
}

// checkOutput rejects an output format that does not exist.
func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return usageError{fmt.Errorf("-o %s: want table or json", output)}
	}
	return nil
}

func (p program) status(ctx context.Context, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	s, err := p.readStatus(ctx)
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	switch {
	case err != nil && output == "json":
		return errors.Join(err, enc.Encode(schema.AsError(err).Body("")))
	case err != nil:
		return err
	case output == "json":
		return enc.Encode(s)
	}
	return s.print(p.stdout)
}

func (p program) readStatus(ctx context.Context) (Status, error) {
	c, err := p.load()
	if err == nil && c.NodeID == "" {
		err = schema.NewError(schema.KindInvalidRequest, "this node is not configured: GPUAAS_NODE_ID is neither in the environment nor in %s",
			cmp.Or(c.EnvFile, trust.DefaultEnvFile)).
			WithNext("on a machine with the gpuaas CLI: gpuaas node bootstrap-script NODE | ssh root@NODE sh")
	}
	if err != nil {
		return Status{}, usageError{err}
	}
	return ReadStatus(ctx, c)
}

func (p program) version(context.Context) error {
	_, err := fmt.Fprintln(p.stdout, "gpuaas-node-agent", version.Read())
	return err
}
