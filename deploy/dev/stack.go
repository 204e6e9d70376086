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

	"github.com/gpuaas/gpuaas/schema"
)

// stack is one folder's stack and what this command knows of its machine.
type stack struct {
	layout layout
	record record
	// self is the gpuaas program; ours are looked for beside it.
	self string
	// tree is the project's source tree, "" when there is none at hand.
	tree string
	talk io.Writer
	// onPostgres is what a new stack's record takes over as TemporalOnPostgres.
	onPostgres bool
	// getenv reads this command's environment, look finds a program on PATH.
	getenv func(string) string
	look   func(string) string
}

// newStack answers a stack that knows its machine and nothing of its record.
func newStack(dir string, talk io.Writer) (*stack, error) {
	l, err := newLayout(dir)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return &stack{
		layout: l, self: self, tree: findTree(filepath.Dir(self)), talk: talk, getenv: os.Getenv,
		look: func(program string) string {
			path, err := exec.LookPath(program)
			if err != nil {
				return ""
			}
			return path
		},
	}, nil
}

// openStack is newStack with the record of a stack that is there.
func openStack(dir string, talk io.Writer) (*stack, error) {
	s, err := newStack(dir, talk)
	if err != nil {
		return nil, err
	}
	var found bool
	if s.record, found, err = s.layout.load(); err == nil && !found {
		err = schema.NewError(schema.KindNotFound, "there is no stack in %s", s.layout.dir).
			WithReason("no_stack").WithNext("gpuaas dev up" + dirFlag(dir))
	}
	return s, err
}

// decide settles the record: which servers, where.
func (s *stack) decide(ctx context.Context, from int) error {
	c := chooser{getenv: s.getenv, look: s.look}
	old, found, err := s.layout.load()
	if err != nil {
		return err
	}
	if found {
		s.record, err = c.again(ctx, old, from, s.runs())
	} else {
		s.record, err = c.plan(ctx, from)
		s.onTemporal()
	}
	if err != nil {
		return err
	}
	if url := s.getenv(varDatabaseURL); url != "" && !s.record.Postgres.owned() {
		if err := writePrivate(s.layout.databaseURL(), []byte(url+"\n")); err != nil {
			return err
		}
	}
	if old.Ports.Node != s.record.Ports.Node {
		if err := s.moveAgents(); err != nil {
			return err
		}
	}
	return s.layout.save(s.record)
}

// runs reports whether any process of the stack runs.
func (s *stack) runs() bool {
	runs, err := s.layout.started()
	return err != nil || slices.ContainsFunc(runs, func(r runFile) bool { return r.alive() })
}

// engines are the parts that ours stand on, in the order of starting.
func (s *stack) engines() []part {
	return append([]part{s.postgres(), s.vault()}, s.temporal()...)
}

// parts are all of them, in the order of starting.
func (s *stack) parts() ([]part, error) {
	agents, err := s.agents()
	return slices.Concat(s.engines(), []part{s.worker(), s.api()}, agents), err
}

// up brings every part that is missing. When one cannot be brought, those that
// it started are stopped again.
func (s *stack) up(ctx context.Context) (err error) {
	parts, err := s.parts()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		_, ok := s.layout.running(p.name)
		return ok || !p.ours()
	})
	if err := s.precheck(ctx, missing); err != nil {
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
		fresh, err := s.bring(ctx, p)
		if fresh {
			started = append(started, p)
		}
		if err != nil {
			return err
		}
	}
	s.record.Whole = true
	return s.layout.save(s.record)
}

// bring makes a part healthy and says so when it was started.
func (s *stack) bring(ctx context.Context, p part) (started bool, err error) {
	if p.owner() != p.name {
		return false, p.await(ctx, s.layout, func() bool { return false })
	}
	started, err = p.bring(ctx, s.layout)
	if started && err == nil {
		fmt.Fprintf(s.talk, "started    %s %s\n", p.name, p.address)
	}
	return started, err
}

// precheck finds what would stop a start half way: a port that another program
// holds, a program that is missing. Servers that must be built are built here.
func (s *stack) precheck(ctx context.Context, missing []part) error {
	var err error
	for _, p := range missing {
		for _, use := range p.uses {
			err = errors.Join(err, checkPort(ctx, p.name, use.what, use.port))
		}
	}
	if err != nil {
		return err
	}
	for _, p := range missing {
		switch {
		case p.name == partVault && s.record.Vault.Kind == kindEmbedded:
			err = s.ensureEmbedded(ctx, vaultBinary)
		case p.name == partTemporal && s.record.Temporal.Kind == kindEmbedded:
			err = s.ensureEmbedded(ctx, temporalBinary)
		case p.name == partWorker:
			_, err = s.program(workerBinary)
		case p.name == partAPI:
			_, err = s.program(apiBinary)
		case strings.HasPrefix(p.name, agentPrefix):
			_, err = s.program(agentBinary)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stopParts stops the given parts in the reverse order.
func (s *stack) stopParts(ctx context.Context, parts []part) error {
	var err error
	for _, p := range slices.Backward(parts) {
		if id, ok := s.layout.running(p.name); ok {
			err = errors.Join(err, p.end(ctx, s.layout, id))
		}
	}
	return err
}
