package agent

import (
	"context"
	"errors"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
)

// ErrReplaced is the end of an agent in whose process another release must start.
var ErrReplaced = errors.New("another release of the agent must start")

// maxVersionOutput is how much of the output of a binary's command version is read.
const maxVersionOutput = 1 << 10

// openUpgrade opens the upgrades of this agent.
func openUpgrade(a *Agent) *release.Upgrade {
	return release.Open(release.Config{
		State: a.state, Running: a.deps.Running, Version: version.Version(),
		Keys: func() []trust.VerifierKey { return a.conf.releaseKeys },
		Fetch: func(ctx context.Context, sha256 string, size int64) ([]byte, error) {
			return a.api().Package(ctx, sha256, size)
		},
		VersionOf: func(ctx context.Context, path string) (string, error) {
			out, _, err := command.Runner{}.Run(ctx, maxVersionOutput, path, "version")
			if err != nil {
				return "", err
			}
			return release.ReportedVersion([]byte(out))
		},
		Restart: func() {
			a.replaced.Store(true)
			a.stop(ErrReplaced)
		},
		Retry: a.timing.poll, Trial: a.timing.trial, Log: a.log,
	})
}
