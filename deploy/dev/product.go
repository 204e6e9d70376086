package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// The programs of this project.
const (
	workerBinary = "gpuaas-worker"
	apiBinary    = "gpuaas-api"
	agentBinary  = "gpuaas-dev-agent"
	fleetBinary  = "gpuaas-fleet"
)

// agentArchive is the agent's install package, next to our programs if it was
// built.
const agentArchive = "gpuaas-node-agent.tar.gz"

func (s *stack) worker() part {
	return part{
		name: partWorker, address: "http://" + loopback(s.record.Ports.WorkerMetrics),
		uses:    []portUse{{"metrics", s.record.Ports.WorkerMetrics}},
		healthy: get("http://" + loopback(s.record.Ports.WorkerMetrics) + "/readyz"),
		prepare: func(context.Context) (command, error) {
			path, err := s.programs.path(workerBinary)
			return command{path: path, env: append(s.record.processEnv(s.record.worker(s.layout)), ofProviders(os.Environ())...)}, err
		},
	}
}

func (s *stack) api() part {
	p := s.record.Ports
	return part{
		name: partAPI, address: s.record.adminURL(),
		uses:    []portUse{{"admin API", p.Admin}, {"node API", p.Node}, {"metrics", p.APIMetrics}},
		healthy: all(get("http://"+loopback(p.APIMetrics)+"/readyz"), dialable(loopback(p.Node))),
		prepare: func(context.Context) (command, error) {
			path, err := s.programs.path(apiBinary)
			return command{path: path, env: s.record.processEnv(s.apiVariables())}, err
		},
	}
}

// apiVariables returns the configuration of gpuaas-api, with the agent's package if it
// was built.
func (s *stack) apiVariables() variables {
	archive := filepath.Join(filepath.Dir(s.programs.find(apiBinary)), agentArchive)
	_, missing := os.Stat(archive)
	public, noKey := releasePublicKey(releaseKey(s.layout))
	return s.record.api(s.layout).with(missing == nil, "GPUAAS_AGENT_ARCHIVE", archive).
		with(noKey == nil, "GPUAAS_AGENT_RELEASES", releasesDir(s.layout)).with(noKey == nil, "GPUAAS_RELEASE_PUBKEYS", public)
}

// all succeeds if every probe does.
func all(probes ...probe) probe {
	return func(ctx context.Context) error {
		var err error
		for _, p := range probes {
			err = errors.Join(err, p(ctx))
		}
		return err
	}
}

// setupBudget bounds setup.
const setupBudget = 2 * time.Minute

// setup runs `gpuaas admin setup`, which is idempotent, and again while a server does
// not respond. The output is in log/setup.log.
func (s *stack) setup(ctx context.Context) error {
	if _, err := ensureSecret(s.layout.adminToken()); err != nil {
		return err
	}
	if err := ensureReleaseKey(releaseKey(s.layout)); err != nil {
		return err
	}
	if err := (vaultEngine{s}).ensureToken(); err != nil {
		return err
	}
	if err := s.admin(ctx, setupBudget, schema.ExitUnreachable, "setup"); err != nil {
		return err
	}
	fmt.Fprintln(s.messages, "set up     database, Vault and Temporal for this version")
	return nil
}

// promoteBudget bounds promote. A worker that just started may not have polled yet.
const promoteBudget = 10 * time.Second

// promote makes the version of a worker that was just started current. Otherwise it
// would be a standby while Temporal still remembers the polls of the worker before. It
// fails if the worker has another version than this program; the worker then takes over
// later.
func (s *stack) promote(ctx context.Context) {
	if err := s.admin(ctx, promoteBudget, schema.ExitRefused, "promote"); err != nil {
		fmt.Fprintf(s.messages, "warning: %v\nThe worker takes over when the polls of the version before it are 90 s old.\n", err)
	}
}

// admin runs an admin command, and again while it exits with the code retry. Its output
// is in log/setup.log.
func (s *stack) admin(ctx context.Context, budget time.Duration, retry int, name string) error {
	log, err := os.OpenFile(s.layout.logPath("setup"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, privateFile)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // only the child writes to it
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	until(ctx, budget, func() bool {
		cmd := exec.CommandContext(ctx, s.programs.executable, "admin", name)
		cmd.Env, cmd.Stdout, cmd.Stderr = s.record.processEnv(s.record.setup(s.layout)), log, log
		err = cmd.Run()
		return cmd.ProcessState.ExitCode() != retry
	})
	if err != nil {
		return stackError("read its log", "gpuaas admin %s: %v%s", name, err, tail(s.layout.logPath("setup")))
	}
	return nil
}
