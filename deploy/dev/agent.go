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
		Use: "agent NAME", Short: "Run a real node agent for the node NAME",
		Long: `Runs a real agent process for the registered node with the host name NAME, its
files under DIR/agents/NAME. An agent that has an identity goes on with it. One
that has none enrols: with the bundle in --bundle, or with one that this command
asks for with "gpuaas node enroll NAME".

Its workload driver runs real processes: put NAME.json with a "command" into
DIR/agents/NAME/workloads. dev up starts the agent again with the rest of the
stack, dev down stops it and its workloads.`,
		Example: `  gpuaas node register gpu-17 --sku cpu-dev --region local
  gpuaas dev agent gpu-17 --detach`,
		Args: takes("NAME"), RunE: func(c *cobra.Command, args []string) error { return runAgent(c, o, args[0]) },
	}
	c.Flags().BoolVar(&o.detach, "detach", false, "return when the agent is up and leave it running")
	c.Flags().StringVar(&o.bundle, "bundle", "", "file with the node's bootstrap bundle")
	return c
}

// agentName is a host name that is a plain file name too.
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
	a := s.agent(name)
	begin := size(a.log)
	if err := s.raiseAgent(ctx, a, o.bundle); err != nil {
		return err
	}
	id, _ := s.layout.running(a.part())
	fmt.Fprintf(o.stderr, "%s runs as pid %d; log %s, workloads in %s\n", a.part(), id.PID, a.log, a.workloads())
	if o.detach {
		return nil
	}
	return s.followAgent(ctx, a, id, begin)
}

// raiseAgent makes the agent run, alone on the stack's folder.
func (s *stack) raiseAgent(ctx context.Context, a agentFolder, bundle string) error {
	unlock, err := s.layout.lock(ctx, s.talk)
	if err != nil {
		return err
	}
	defer unlock()
	p := s.agentPart(a)
	id, runs := s.layout.running(a.part())
	if runs && bundle == "" {
		return nil
	}
	if bundle != "" || !a.enrolled() || a.removed() {
		b, err := s.bundle(ctx, a, bundle)
		if err != nil {
			return err
		}
		if runs {
			if err := p.end(ctx, s.layout, id); err != nil {
				return err
			}
		}
		if err := a.write(b); err != nil {
			return err
		}
	}
	if err := s.precheck(ctx, []part{p}); err != nil {
		return err
	}
	_, err = s.bring(ctx, p)
	return err
}

// bundle reads the bundle from a file, or has one made for the node.
func (s *stack) bundle(ctx context.Context, a agentFolder, file string) (trust.BootstrapBundle, error) {
	var b trust.BootstrapBundle
	if file == "" {
		dir, err := os.MkdirTemp(s.layout.secretsDir(), "bundle-*")
		if err != nil {
			return b, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a used token is worth nothing
		file = filepath.Join(dir, "bundle.json")
		if err := s.enroll(ctx, a.name, file); err != nil {
			return b, err
		}
	}
	found, err := readJSON(file, &b)
	if err == nil && (!found || b.NodeID == "") {
		err = fault("gpuaas node enroll "+a.name+" --bundle FILE makes one", "%s is not a bootstrap bundle", file)
	}
	return b, err
}

// enroll asks the control plane for a bundle, through the command that an
// operator would use.
func (s *stack) enroll(ctx context.Context, node, file string) error {
	token, err := ensureSecret(s.layout.adminToken())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.self, "node", "enroll", node, "--bundle", file, "--no-wait")
	cmd.Env = s.record.processEnv(s.record.shell(token))
	var said strings.Builder
	cmd.Stderr = &said
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		why := strings.TrimPrefix(strings.TrimSpace(said.String()), "error: ")
		e := schema.NewError(kindOfExit(exit.ExitCode()), "enrolling %s: %s", node, why).WithReason("enroll")
		if e.Kind == schema.KindNotFound {
			e.Next = "gpuaas node register " + node + " --sku cpu-dev --region local"
		}
		return e
	}
	return err
}

// kindOfExit answers an error kind with the given exit code, so that the code
// of the inner command is the outer one's too.
func kindOfExit(code int) schema.Kind {
	for _, kind := range []schema.Kind{schema.KindInvalidRequest, schema.KindNotFound, schema.KindServiceUnavailable} {
		if kind.Info().Exit == code {
			return kind
		}
	}
	return schema.KindInternal
}

// followAgent shows the agent's log from begin on until the agent ends or ctx
// does, which stops the agent.
func (s *stack) followAgent(ctx context.Context, a agentFolder, id identity, begin int64) error {
	for {
		until(ctx, watchEvery, func() bool { return size(a.log) > begin || !id.alive() })
		n, err := copyFrom(s.talk, a.log, begin)
		if err != nil {
			return err
		}
		begin += n
		switch {
		case ctx.Err() != nil:
			return s.agentPart(a).end(context.WithoutCancel(ctx), s.layout, id)
		case n == 0 && !id.alive():
			fmt.Fprintf(s.talk, "%s ended\n", a.part())
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

// copyFrom copies the file from an offset on and answers how much that was.
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
