package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// drainDeadline is how long the workload gets, which needs longer.
const drainDeadline = 5 * time.Second

// checkpoint is the file on which the workload waits before it ends.
func (d *demo) checkpoint() string { return filepath.Join(d.agentDir(), "checkpoint-written") }

// workloadSpec is a workload that does not end at a SIGTERM until its checkpoint is written.
func (d *demo) workloadSpec() (string, error) {
	file, err := filepath.Abs(d.checkpoint())
	if err != nil {
		return "", err
	}
	spec, err := json.Marshal(map[string][]string{"command": {"sh", "-c", `trap "" TERM; while [ ! -e "$0" ]; do sleep 0.2; done`, file}})
	return string(spec), err
}

// drainParks drains the node, whose workload does not end before the deadline, so that the operation parks.
func (d *demo) drainParks(ctx context.Context) (string, error) {
	err := d.cli.run(ctx, "node", "drain", d.host, "--wait", "--yes", "--deadline", drainDeadline.String(), "--reason", "demo")
	if code := exitCode(err); code != schema.ExitPending {
		return "", fmt.Errorf("the drain of a node with a workload that keeps running did not park (exit %d): %w", code, err)
	}
	fmt.Fprintln(d.cli.out, "The workload did not end in time. The operation is parked and waits for an operator:")
	if err := d.cli.run(ctx, "stuck"); err != nil {
		return "", err
	}
	return d.link(ctx)
}

// resolvePark runs the command that gpuaas stuck recommends. The workload writes its checkpoint meanwhile, and
// the drain ends.
func (d *demo) resolvePark(ctx context.Context) (string, error) {
	out, err := d.cli.output(ctx, "op", "show", d.host, "-o", "json")
	if err != nil {
		return "", err
	}
	var st lifecycle.OperationStatus
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return "", err
	}
	if st.Operation.Stuck == nil {
		return "", fmt.Errorf("the operation is not parked: %s", st.Operation.Status)
	}
	fmt.Fprintln(d.cli.out, "The command in the column NEXT destroys nothing. It gives the workload more time:")
	next := strings.Fields(strings.ReplaceAll(st.Operation.Stuck.Next, lifecycle.ReasonPlaceholder, "checkpoint"))
	if err := d.cli.run(ctx, next[1:]...); err != nil {
		return "", err
	}
	fmt.Fprintln(d.cli.out, "The workload writes its checkpoint and ends.")
	if err := os.WriteFile(d.checkpoint(), nil, 0o600); err != nil {
		return "", err
	}
	if err := d.cli.run(ctx, "op", "watch", d.host); err != nil {
		return "", err
	}
	return d.link(ctx)
}
