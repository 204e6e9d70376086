package repair

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
)

// Outside runs programs that the sandbox of the agent's unit does not permit: a reset of a GPU needs
// CAP_SYS_ADMIN, and a test needs more memory than the agent may use.
type Outside struct {
	// SystemdRun is the path of systemd-run, which runs each program as a unit of its own; "" runs
	// them as children of the agent.
	SystemdRun string
}

// FindOutside returns how programs run on this machine. systemd tells whether systemd runs it.
func FindOutside(systemd bool) Outside {
	if !systemd {
		return Outside{}
	}
	path, _ := exec.LookPath("systemd-run") // without it, programs have the agent's rights
	return Outside{SystemdRun: path}
}

// run runs a program with a limit of its time. A unit that the agent left behind ends at the limit.
func (o Outside) run(ctx context.Context, programs command.Runner, limit time.Duration, name string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.SystemdRun != "" {
		unit := []string{
			"--quiet", "--wait", "--pipe", "--collect", "--service-type=exec",
			fmt.Sprintf("--property=RuntimeMaxSec=%d", int(limit.Seconds())), "--", name,
		}
		name, args = o.SystemdRun, append(unit, args...)
	}
	stdout, stderr, err = programs.Run(ctx, maxOutput, name, args...)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %s", limit)
	}
	return stdout, stderr, err
}

// maxOutput bounds what is read of the output of a program.
const maxOutput = 1 << 20
