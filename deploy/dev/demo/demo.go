package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/stack"
)

// demo is one run of the lifecycle.
type demo struct {
	options
	cli  cli
	host string
	rows []row
	// machines is the libvirt daemon of a demo with --vm.
	machines *machines
}

// row is one line of the final table.
type row struct {
	step string
	took time.Duration
	link string
}

func newDemo(o options) (*demo, error) {
	if err := o.prepare(); err != nil {
		return nil, err
	}
	bin, err := filepath.Abs(filepath.Join("bin", "gpuaas"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(bin); err != nil {
		return nil, fmt.Errorf("%w; run: ./task build", err)
	}
	out, err := o.output()
	if err != nil {
		return nil, err
	}
	return &demo{options: o, cli: cli{stack.Stack{Bin: bin}, out}}, nil
}

// run executes all steps in order and stops at the first failure.
func (d *demo) run(ctx context.Context) error {
	steps := d.hostSteps()
	if d.vm {
		steps = d.machineSteps()
	}
	for _, s := range steps {
		fmt.Fprintf(d.cli.out, "\n== %s\n", s.name)
		started := time.Now()
		link, err := s.do(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		d.rows = append(d.rows, row{s.name, time.Since(started), link})
	}
	return nil
}

// step is one step of the demo. It returns the page of its operation in the Web UI.
type step struct {
	name string
	do   func(context.Context) (link string, err error)
}

// hostSteps are the steps with this machine as the node.
func (d *demo) hostSteps() []step {
	return []step{
		{"stack up", d.up},
		{"register", d.register},
		{"enroll", d.enroll},
		{"provision", d.verb("provision")},
		{"retire a busy node (rejected)", d.retireBusy},
		{"drain a node whose workload keeps running (parks)", d.drainParks},
		{"resolve the park", d.resolvePark},
		{"retire", d.verb("retire", "--yes", "--reason", "demo")},
		{"reactivate", d.verb("reactivate")},
		{"retire before removal", d.verb("retire", "--yes", "--reason", "demo")},
		{"remove", d.verb("remove", "--yes", "--reason", "demo")},
		{"verify the audit trail", d.verify},
	}
}

func (d *demo) up(ctx context.Context) (string, error) {
	args := append([]string{"dev", "up", "--detach"}, d.dirFlag()...)
	if d.portsFrom != 0 {
		args = append(args, "--ports-from", fmt.Sprint(d.portsFrom))
	}
	if err := d.cli.runWith(ctx, d.machines.env(), args...); err != nil {
		return "", err
	}
	out, err := d.cli.output(ctx, append([]string{"dev", "env"}, d.dirFlag()...)...)
	if err != nil {
		return "", err
	}
	d.cli.Env = stack.ParseExports([]byte(out))
	return d.cli.Getenv("GPUAAS_WEB_UI_URL"), nil
}

func (d *demo) dirFlag() []string {
	if d.dir == "" {
		return nil
	}
	return []string{"--dir", d.dir}
}

// register registers this machine under its host name. It appends a number if an
// interrupted demo left a node with that name.
func (d *demo) register(ctx context.Context) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", err
	}
	d.host = name
	for i := 2; d.registered(ctx, d.host); i++ {
		d.host = fmt.Sprintf("%s-%d", name, i)
	}
	return "", d.cli.run(ctx, "node", "register", d.host, "--sku", "cpu-dev", "--region", "region-1")
}

func (d *demo) registered(ctx context.Context, host string) bool {
	out, err := d.cli.output(ctx, "node", "show", host, "-o", "json")
	var node wire.NodeView
	return err == nil && json.Unmarshal([]byte(out), &node) == nil && node.State != lifecycle.NodeRemoved
}

// enroll creates a bundle, starts the agent with it and waits for the agent's first
// authenticated poll.
func (d *demo) enroll(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "gpuaas-bundle-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	bundle := filepath.Join(dir, "bundle.json")
	if err := d.cli.run(ctx, "node", "enroll", d.host, "--no-wait", "--bundle", bundle); err != nil {
		return "", err
	}
	agent := append([]string{"dev", "agent", d.host, "--detach", "--bundle", bundle}, d.dirFlag()...)
	if err := d.cli.run(ctx, agent...); err != nil {
		return "", err
	}
	if err := d.cli.run(ctx, "op", "watch", d.host); err != nil {
		return "", err
	}
	return d.link(ctx)
}

// verb runs a lifecycle command and waits for its result.
func (d *demo) verb(verb string, flags ...string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		args := append([]string{"node", verb, d.host, "--wait"}, flags...)
		if err := d.cli.run(ctx, args...); err != nil {
			return "", err
		}
		return d.link(ctx)
	}
}

// retireBusy starts a workload and verifies that retire is rejected while it runs.
func (d *demo) retireBusy(ctx context.Context) (string, error) {
	if err := d.startWorkload(ctx); err != nil {
		return "", err
	}
	fmt.Fprintln(d.cli.out, "The node runs a workload, so gpuaas must reject the next command:")
	err := d.cli.run(ctx, "node", "retire", d.host, "--yes")
	if code := exitCode(err); code != schema.ExitRefused {
		return "", fmt.Errorf("retire of a busy node was not rejected (exit %d): %w", code, err)
	}
	return "", nil
}

// agentDir is the folder of the node's agent.
func (d *demo) agentDir() string { return filepath.Join(cmp.Or(d.dir, ".dev"), "agents", d.host) }

// startWorkload makes the agent run a process and waits until the agent reports it.
func (d *demo) startWorkload(ctx context.Context) error {
	file := filepath.Join(d.agentDir(), "workloads", "training.json")
	spec, err := d.workloadSpec()
	if err != nil {
		return err
	}
	fmt.Fprintf(d.cli.out, "Starting the workload training in %s\n", file)
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		out, err := d.cli.output(ctx, "node", "show", d.host, "-o", "json")
		if err != nil {
			return err
		}
		var node wire.NodeView
		if err := json.Unmarshal([]byte(out), &node); err != nil {
			return err
		}
		if slices.ContainsFunc(node.Workloads, func(w task.Workload) bool { return w.Name == "training" }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the agent did not report its workload within a minute")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (d *demo) verify(ctx context.Context) (string, error) {
	return "", d.cli.run(ctx, "audit", "--verify")
}

// link returns the Web UI page of the node's latest operation.
func (d *demo) link(ctx context.Context) (string, error) {
	out, err := d.cli.output(ctx, "op", "show", d.host, "-o", "json")
	if err != nil {
		return "", err
	}
	var st lifecycle.OperationStatus
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/namespaces/%s/workflows/%s/%s/timeline", d.cli.Getenv("GPUAAS_WEB_UI_URL"),
		d.cli.Getenv("TEMPORAL_NAMESPACE"), strings.ReplaceAll(st.Operation.WorkflowID, ":", "%3A"), st.Operation.RunID), nil
}

// finish removes the stack of --once and prints the table.
func (d *demo) finish(failed error) {
	if d.once {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if failed != nil {
			d.cli.run(ctx, append([]string{"dev", "status"}, d.dirFlag()...)...) //nolint:errcheck // diagnostics only
		}
		if err := d.cli.run(ctx, append([]string{"dev", "down", "--wipe"}, d.dirFlag()...)...); err != nil {
			fmt.Fprintln(os.Stderr, "demo: removing the stack:", err)
		}
		d.machines.close()
		if d.own != "" {
			os.RemoveAll(d.own) //nolint:errcheck // a temporary folder, empty by now
		}
	}
	d.print()
	if !d.once && failed == nil {
		flag := strings.Join(append([]string{""}, d.dirFlag()...), " ")
		fmt.Printf("\nThe stack is running.\n  Web UI   %[1]s\n  use it   eval \"$(bin/gpuaas dev env%[2]s)\"\n  stop it  bin/gpuaas dev down%[2]s\n",
			d.cli.Getenv("GPUAAS_WEB_UI_URL"), flag)
	}
}

// print prints the table of the steps. A stack that was removed has no links.
func (d *demo) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nSTEP\tTOOK")
	if !d.once {
		fmt.Fprint(w, "\tWEB UI")
	}
	for _, r := range d.rows {
		fmt.Fprintf(w, "\n%s\t%s", r.step, r.took.Round(time.Millisecond))
		if !d.once {
			fmt.Fprint(w, "\t"+r.link)
		}
	}
	fmt.Fprintln(w)
	w.Flush() //nolint:errcheck // standard output
}
