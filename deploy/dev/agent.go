package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

type agentOptions struct {
	*options
	detach bool
	bundle string
}

func newAgent(shared *options) *cobra.Command {
	o := agentOptions{options: shared}
	c := &cobra.Command{
		Use: "agent NAME", Short: "Run the node agent of the node NAME on this machine",
		Long: `Run the agent of a registered node, whose host name is NAME, as a process on this
machine. The agent's files are in DIR/agents/NAME. An agent without an identity
enrolls first, with the bundle in --bundle, or with a bundle that this command
requests like "gpuaas node enroll NAME". If that is refused, for example because
the node was reissued, the agent uses the token in its env file. --bundle also
takes the recovery bundle of "gpuaas node reissue-enrollment NAME --bundle FILE".

The agent runs local processes as workloads. To start a workload, create
DIR/agents/NAME/workloads/WORKLOAD.json:

  {"command": ["sleep", "3600"], "restart": true}

"restart" is optional: if true, the agent restarts a process that exits. gpuaas
dev up restarts the agent with the rest of the stack; gpuaas dev down stops the
agent and its workloads.

The agent reports the health of a simulated machine and repairs that machine: a
reboot restarts the agent, with another boot ID. DIR/agents/NAME/faults.json has
the machine's faults, as the file of gpuaas dev fleet --faults.`,
		Example: `  gpuaas node register gpu-17 --sku cpu-dev --region local
  gpuaas dev agent gpu-17 --detach`,
		Args: exactArgs("NAME"), RunE: func(c *cobra.Command, args []string) error { return runAgent(c, o, args[0]) },
	}
	c.Flags().BoolVar(&o.detach, "detach", false, "return when the agent is enrolled, and leave it running")
	c.Flags().StringVar(&o.bundle, "bundle", "", "`file` with the node's bootstrap bundle")
	return c
}

// agentName matches a host name that is also a valid file name.
var agentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func runAgent(c *cobra.Command, o agentOptions, name string) error {
	ctx := c.Context()
	if !agentName.MatchString(name) {
		return &UsageError{Command: c.CommandPath(), Message: fmt.Sprintf("%q is not a host name", name)}
	}
	s, err := openStack(o.dir, o.stderr)
	if err != nil {
		return err
	}
	agents := agents{s}
	a := agents.folder(name)
	begin := size(a.log)
	if err := agents.start(ctx, a, o.bundle); err != nil {
		return err
	}
	id, _ := s.layout.processes().running(a.part())
	fmt.Fprintf(o.stderr, "%s is running (pid %d)\n  log        %s\n  workloads  %s\n", a.part(), id.PID, a.log, a.workloads())
	if o.detach {
		return nil
	}
	return agents.follow(ctx, a, id, begin)
}

// start starts the agent while holding the lock of the stack's folder.
func (s agents) start(ctx context.Context, a agentFolder, bundle string) error {
	unlock, err := s.layout.lock(ctx, s.messages)
	if err != nil {
		return err
	}
	defer unlock()
	p := s.part(a)
	id, runs := s.layout.processes().running(a.part())
	if runs && bundle == "" {
		return nil
	}
	if bundle != "" || !a.enrolled() || a.removed() {
		b, err := s.bundle(ctx, a, bundle)
		hasToken := bundle == "" && refused(err) && !a.removed() && a.setting("GPUAAS_ENROLLMENT_TOKEN") != ""
		if err != nil && !hasToken {
			return err
		}
		if runs {
			if err := p.stop(ctx, s.layout, id); err != nil {
				return err
			}
		}
		if hasToken {
			fmt.Fprintf(s.messages, "%s starts with the token in %s\n", a.part(), a.envFile())
		} else if err := a.write(b); err != nil {
			return err
		}
	}
	if err := s.preflight(ctx, []part{p}); err != nil {
		return err
	}
	_, err = s.ensurePart(ctx, p)
	return err
}

// refused reports whether the node needs no enrollment, for example because it was reissued.
func refused(err error) bool {
	ended, ok := errors.AsType[*EndedError](err)
	return ok && ended.Code == schema.ExitRefused
}

// bundle reads the bundle from a file, or requests one for the node.
func (s agents) bundle(ctx context.Context, a agentFolder, file string) (trust.BootstrapBundle, error) {
	var b trust.BootstrapBundle
	if file == "" {
		dir, err := os.MkdirTemp(s.layout.secretsDir(), "bundle-*")
		if err != nil {
			return b, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // the token is used by now
		file = filepath.Join(dir, "bundle.json")
		if err := s.enroll(ctx, a.name, file); err != nil {
			return b, err
		}
	}
	found, err := statefile.ReadJSON(file, &b)
	if err == nil && (!found || b.NodeID == "") {
		err = stackError("gpuaas node enroll "+a.name+" --bundle FILE creates one", "%s is not a bootstrap bundle", file)
	}
	return b, err
}

// enroll requests a bundle with the operator's command.
func (s agents) enroll(ctx context.Context, node, file string) error {
	token, err := ensureSecret(s.layout.adminToken())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.programs.executable, "node", "enroll", node, "--bundle", file, "--no-wait")
	cmd.Env = s.record.processEnv(s.record.shell(token))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err = cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	fmt.Fprint(s.messages, stderr.String())
	if exit.ExitCode() == schema.ExitNotFound {
		fmt.Fprintf(s.messages, "to add it: gpuaas node register %s --sku cpu-dev --region local\n", node)
	}
	return &EndedError{Program: "gpuaas node enroll", Code: exit.ExitCode()}
}

// follow prints the agent's log from offset begin until the agent exits. If ctx
// ends, it stops the agent.
func (s agents) follow(ctx context.Context, a agentFolder, id identity, begin int64) error {
	for {
		until(ctx, watchInterval, func() bool { return size(a.log) > begin || !id.alive() })
		n, err := copyFrom(s.messages, a.log, begin)
		if err != nil {
			return err
		}
		begin += n
		switch {
		case ctx.Err() != nil:
			return s.part(a).stop(context.WithoutCancel(ctx), s.layout, id)
		case n == 0 && !id.alive():
			fmt.Fprintf(s.messages, "%s exited\n", a.part())
			return nil
		}
	}
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// copyFrom copies the file from an offset and returns the number of bytes.
func copyFrom(w io.Writer, file string, offset int64) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, f)
}
