package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

type downOptions struct {
	*options
	wipe bool
}

func newDown(shared *options) *cobra.Command {
	o := downOptions{options: shared}
	c := &cobra.Command{
		Use: "down", Short: "Stop the stack",
		Long: `Stop the processes that gpuaas dev up and gpuaas dev agent started, including the
agents' workloads. The command identifies each process by pid and start time, so
it never stops another process. The stack's state remains for the next
gpuaas dev up.`,
		Example: `  gpuaas dev down
  gpuaas dev down --wipe`,
		Args: exactArgs(), RunE: func(c *cobra.Command, _ []string) error { return runDown(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.wipe, "wipe", false, "also delete the stack's state, keys, and logs, except files of virtual machines that may run")
	return c
}

func runDown(ctx context.Context, o downOptions) error {
	s, err := newStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.layout.dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.messages, "there is no stack in %s\n", s.layout.dir)
		return nil
	}
	if !o.wipe {
		return s.stop(ctx)
	}
	return s.wipe(ctx)
}

// stop stops the stack while holding the folder's lock.
func (s *stack) stop(ctx context.Context) error {
	unlock, err := s.layout.lock(ctx, s.messages)
	if err != nil {
		return err
	}
	defer unlock()
	return s.stopAll(ctx)
}

// stopAll stops every process with a run file, and the workloads of agents.
func (s *stack) stopAll(ctx context.Context) error {
	runs, err := s.layout.processes().all()
	if err != nil {
		return err
	}
	var stopErr error
	workloadsStopped := false
	for _, r := range runs {
		if !workloadsStopped && !strings.HasPrefix(r.Part, agentPrefix) {
			workloadsStopped = true
			stopErr = errors.Join(stopErr, (agents{s}).stopWorkloads(ctx))
		}
		if r.alive() {
			fmt.Fprintf(s.messages, "stopping   %s (pid %d)\n", r.Part, r.PID)
		}
		if err := s.stoppable(r.Part).stop(ctx, s.layout, r.identity); err != nil {
			stopErr = errors.Join(stopErr, fmt.Errorf("%s: %w", r.Part, err))
		}
	}
	if !workloadsStopped {
		stopErr = errors.Join(stopErr, (agents{s}).stopWorkloads(ctx))
	}
	return stopErr
}

// stoppable returns a part with its stop signals. It does not need the record.
func (s *stack) stoppable(name string) part {
	if name == partPostgres {
		s.record.Postgres.Kind = kindPath
		return postgresEngine{s}.part()
	}
	return part{name: name}
}

func (s agents) stopWorkloads(ctx context.Context) error {
	names, err := s.layout.agentNames()
	for _, name := range names {
		n, stopErr := s.folder(name).stopWorkloads(ctx)
		if n > 0 {
			fmt.Fprintf(s.messages, "stopping   %d workloads of agent/%s\n", n, name)
		}
		err = errors.Join(err, stopErr)
	}
	return err
}

// libvirtDir is the folder of the provider libvirt.
func libvirtDir(l layout) string { return filepath.Join(l.dir, "libvirt") }

// wipeLibvirt removes the folder of the virtual machines. It keeps the folder while it has files
// of a machine, which the provider deletes with the machine: a machine outlives the stack.
func wipeLibvirt(l layout, messages io.Writer) error {
	dir, ids := libvirtDir(l), []string{}
	for _, pattern := range []string{"consoles/*.log", "boot/*.json", "disks/*.img"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			ids = append(ids, "gpuaas-"+strings.TrimSuffix(filepath.Base(f), filepath.Ext(f)))
		}
	}
	if len(ids) == 0 {
		return os.RemoveAll(dir)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	machines := "virtual machine " + ids[0]
	if len(ids) > 1 {
		machines = "virtual machines " + strings.Join(ids, ", ")
	}
	fmt.Fprintf(messages, "kept       %s: the %s may still run; delete with virsh what still exists, then the folder\n", dir, machines)
	return nil
}

// wipe stops the stack and removes its files. If the folder contains other files,
// they and the folder remain.
func (s *stack) wipe(ctx context.Context) error {
	unlock, err := s.layout.lock(ctx, s.messages)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.stopAll(ctx); err != nil {
		return err
	}
	r, _, err := s.layout.load()
	if err == nil {
		err = r.wipePostgres()
	}
	for _, name := range s.layout.entries() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.layout.dir, name)))
	}
	err = errors.Join(err, wipeLibvirt(s.layout, s.messages))
	if err != nil {
		return err
	}
	fmt.Fprintf(s.messages, "removed    the state in %s\n", s.layout.dir)
	_ = os.Remove(s.layout.dir) // fails if the folder is not empty
	return nil
}
