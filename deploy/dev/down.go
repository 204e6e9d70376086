package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
		Use: "down", Short: "Stop what dev up started",
		Long: `Stops the processes that dev up and dev agent started, and those that the agents
started as workloads, in the reverse order. Nothing else is touched: a process is
known by its pid and its start time. The state stays, for the next dev up.`,
		Example: `  gpuaas dev down
  gpuaas dev down --wipe`,
		Args: takes(), RunE: func(c *cobra.Command, _ []string) error { return runDown(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.wipe, "wipe", false, "also remove the stack's state, keys and logs")
	return c
}

func runDown(ctx context.Context, o downOptions) error {
	s, err := newStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.layout.dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.talk, "there is no stack in %s\n", s.layout.dir)
		return nil
	}
	if !o.wipe {
		return s.lower(ctx)
	}
	return s.wipe(ctx)
}

// lower stops the stack, alone on its folder.
func (s *stack) lower(ctx context.Context) error {
	unlock, err := s.layout.lock(ctx, s.talk)
	if err != nil {
		return err
	}
	defer unlock()
	return s.down(ctx)
}

// down stops every process that a run file names, and the workloads of agents.
func (s *stack) down(ctx context.Context) error {
	runs, err := s.layout.started()
	if err != nil {
		return err
	}
	var stopErr error
	swept := false
	for _, r := range runs {
		if !swept && !strings.HasPrefix(r.Part, agentPrefix) {
			swept = true
			stopErr = errors.Join(stopErr, s.stopWorkloads(ctx))
		}
		if r.alive() {
			fmt.Fprintf(s.talk, "stopping   %s (pid %d)\n", r.Part, r.PID)
		}
		if err := s.described(r.Part).end(ctx, s.layout, r.identity); err != nil {
			stopErr = errors.Join(stopErr, fmt.Errorf("%s: %w", r.Part, err))
		}
	}
	if !swept {
		stopErr = errors.Join(stopErr, s.stopWorkloads(ctx))
	}
	return stopErr
}

// described answers how to stop a part; the record is not needed for it.
func (s *stack) described(name string) part {
	if name == partPostgres {
		s.record.Postgres.Kind = kindPath
		return s.postgres()
	}
	return part{name: name}
}

func (s *stack) stopWorkloads(ctx context.Context) error {
	names, err := s.layout.agentNames()
	for _, name := range names {
		n, stopErr := s.agent(name).stopWorkloads(ctx)
		if n > 0 {
			fmt.Fprintf(s.talk, "stopping   %d workloads of agent/%s\n", n, name)
		}
		err = errors.Join(err, stopErr)
	}
	return err
}

// wipe stops the stack and removes what the layout owns. Other files in the
// folder stay, and the folder with them.
func (s *stack) wipe(ctx context.Context) error {
	unlock, err := s.layout.lock(ctx, s.talk)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.down(ctx); err != nil {
		return err
	}
	r, _, err := s.layout.load()
	if err == nil {
		err = r.wipePostgres()
	}
	for _, name := range s.layout.entries() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.layout.dir, name)))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.talk, "removed    the state in %s\n", s.layout.dir)
	_ = os.Remove(s.layout.dir) // stays when it holds anything else
	return nil
}
