package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema"
)

// stack is the stack in one folder, as seen by one command. Engines and agents
// are described by postgresEngine, vaultEngine, temporalEngine and agents, which
// embed it.
type stack struct {
	layout   layout
	record   record
	programs programs
	// messages receives progress messages (stderr).
	messages io.Writer
	getenv   func(string) string
	// upCommand is the command that starts this stack, without its ports.
	upCommand string
	// temporalOnPostgres initializes TemporalOnPostgres of a new record.
	temporalOnPostgres bool
}

// newStack returns a stack without its record.
func newStack(dir string, messages io.Writer) (*stack, error) {
	l, err := newLayout(dir)
	if err != nil {
		return nil, err
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	if real, err := filepath.EvalSymlinks(executable); err == nil {
		executable = real
	}
	return &stack{
		layout: l, messages: messages, getenv: os.Getenv, upCommand: upCommand(dir),
		programs: programs{
			executable: executable, sourceTree: findSourceTree(filepath.Dir(executable)), messages: messages,
			look: func(program string) string {
				path, err := exec.LookPath(program)
				if err != nil {
					return ""
				}
				return path
			},
		},
	}, nil
}

// openStack returns an existing stack with its record.
func openStack(dir string, messages io.Writer) (*stack, error) {
	s, err := newStack(dir, messages)
	if err != nil {
		return nil, err
	}
	var found bool
	if s.record, found, err = s.layout.load(); err == nil && !found {
		err = schema.NewError(schema.KindNotFound, "there is no stack in %s", s.layout.dir).
			WithReason("no_stack").WithNext(s.upCommand)
	}
	return s, err
}

// configure chooses servers and ports, or keeps the earlier choice, and stores
// the record.
func (s *stack) configure(ctx context.Context, from int) error {
	c := chooser{getenv: s.getenv, look: s.programs.look}
	old, found, err := s.layout.load()
	if err != nil {
		return err
	}
	if found {
		s.record, err = c.update(ctx, old, from, s.anyRunning())
	} else {
		s.record, err = c.choose(ctx, from)
		s.keepTemporalOnPostgres()
	}
	if err != nil {
		return err
	}
	if url := s.getenv(varDatabaseURL); url != "" && !s.record.Postgres.owned() {
		if err := statefile.Write(s.layout.databaseURL(), []byte(url+"\n")); err != nil {
			return err
		}
	}
	if old.Ports.Node != s.record.Ports.Node {
		if err := (agents{s}).updateAPIURLs(); err != nil {
			return err
		}
	}
	return s.layout.save(s.record)
}

// anyRunning reports whether any process of the stack runs.
func (s *stack) anyRunning() bool {
	runs, err := s.layout.processes().all()
	return err != nil || slices.ContainsFunc(runs, func(r runFile) bool { return r.alive() })
}

// engines returns Postgres, Vault and Temporal in start order.
func (s *stack) engines() []part {
	return append([]part{postgresEngine{s}.part(), vaultEngine{s}.part()}, temporalEngine{s}.parts()...)
}

// parts returns all parts in start order.
func (s *stack) parts() ([]part, error) {
	agentParts, err := agents{s}.parts()
	return slices.Concat(s.engines(), []part{s.worker(), s.api()}, agentParts), err
}

// startParts starts every missing part. If one fails, it stops the parts that it
// started.
func (s *stack) startParts(ctx context.Context) (err error) {
	parts, err := s.parts()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		_, ok := s.layout.processes().running(p.name)
		return ok || !p.ours()
	})
	if err := s.preflight(ctx, missing); err != nil {
		return err
	}
	var started []part
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stopParts(context.WithoutCancel(ctx), started))
		}
	}()
	for _, p := range parts {
		if p.name == partWorker && slices.ContainsFunc(missing, func(p part) bool { return !strings.HasPrefix(p.name, agentPrefix) }) {
			if err := s.setup(ctx); err != nil {
				return err
			}
		}
		fresh, err := s.ensurePart(ctx, p)
		if fresh {
			started = append(started, p)
		}
		if err != nil {
			return err
		}
		if fresh && p.name == partWorker {
			s.promote(ctx)
		}
	}
	s.record.Complete = true
	return s.layout.save(s.record)
}

// ensurePart makes a part healthy and reports whether it started a process.
func (s *stack) ensurePart(ctx context.Context, p part) (started bool, err error) {
	if p.owner() != p.name {
		return false, p.await(ctx, s.layout, func() bool { return false })
	}
	started, err = p.ensure(ctx, s.layout)
	if started && err == nil {
		fmt.Fprintf(s.messages, "started    %s %s\n", p.name, p.address)
	}
	return started, err
}

// preflight reports a full disk, occupied ports and missing programs before anything starts,
// and builds missing embedded servers.
func (s *stack) preflight(ctx context.Context, missing []part) error {
	var err error
	if len(missing) > 0 {
		err = checkSpace(s.layout.dir, minSpace)
	}
	for _, p := range missing {
		for _, use := range p.uses {
			err = errors.Join(err, checkPort(ctx, p.name, use.purpose, use.port, s.upCommand))
		}
	}
	if err != nil {
		return err
	}
	for _, p := range missing {
		switch {
		case p.name == partVault && s.record.Vault.Kind == kindEmbedded:
			err = s.programs.ensureServer(ctx, vaultBinary)
		case p.name == partTemporal && s.record.Temporal.Kind == kindEmbedded:
			err = s.programs.ensureServer(ctx, temporalBinary)
		case p.name == partWorker:
			_, err = s.programs.path(workerBinary)
		case p.name == partAPI:
			_, err = s.programs.path(apiBinary)
		case strings.HasPrefix(p.name, agentPrefix):
			_, err = s.programs.path(agentBinary)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stopParts stops the given parts in reverse order.
func (s *stack) stopParts(ctx context.Context, parts []part) error {
	var err error
	for _, p := range slices.Backward(parts) {
		if id, ok := s.layout.processes().running(p.name); ok {
			err = errors.Join(err, p.stop(ctx, s.layout, id))
		}
	}
	return err
}
