package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeScriptOptions struct {
	out      string
	fetchRef bool
}

func newNodeScript(e *env) *cobra.Command {
	var o nodeScriptOptions
	c := &cobra.Command{
		Use: "bootstrap-script NODE", Short: "Print a script that installs the agent on a node",
		Long: `Prints a script that installs the agent, its env file, the CA bundle and the systemd
unit on a Debian or Ubuntu host: for a node's first boot, and for one whose files are
too damaged for reissue-enrollment. It starts the enrolment, or for an enrolled node
the reissue, unless one waits already; a token handed out before is void.

A host that was set up before refuses it: make a new script then and run that with
--force. One that ran on a host never runs there again.

The script holds the token. With --fetch-ref it holds a reference instead, which the
node spends once for its bundle: for cloud-init and other places that many can read.
--out writes a file that its owner only can read.`,
		Example: `  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh
  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh -s -- --force
  gpuaas node bootstrap-script gpu-17 --fetch-ref --out user-data.sh`,
		Args: exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runNodeScript(c.Context(), e, args[0], o) },
	}
	c.Flags().StringVar(&o.out, "out", "", "file to write the script to")
	c.Flags().BoolVar(&o.fetchRef, "fetch-ref", false, "put a one-time reference into the script instead of the token")
	return c
}

func runNodeScript(ctx context.Context, e *env, arg string, o nodeScriptOptions) error {
	api, t, err := e.known(ctx, arg)
	if err != nil {
		return err
	}
	keep := func(string) error { return nil }
	if o.out != "" {
		file, err := newSecretFile(o.out)
		if err != nil {
			return err
		}
		defer file.discard()
		keep = file.writeText
	}
	answer, err := api.bootstrapScript(ctx, t.id, wire.BootstrapScriptRequest{FetchRef: o.fetchRef})
	if err != nil {
		return t.inWords(err)
	}
	if err := keep(answer.Script); err != nil {
		return err
	}
	return e.printScript(answer, o)
}

// scriptFile is what is printed of a script that is in a file.
type scriptFile struct {
	File      string    `json:"file"`
	ExpiresAt time.Time `json:"expires_at"`
}

func (e *printer) printScript(answer wire.BootstrapScriptResponse, o nodeScriptOptions) error {
	holds := "the token"
	if o.fetchRef {
		holds = "a one-time reference"
	}
	e.say("the script holds %s, good until %s", holds, e.stamp(answer.ExpiresAt))
	if o.out != "" {
		e.say("written to %s (mode 0600)", o.out)
	}
	switch {
	case !e.machine() && o.out == "":
		_, err := fmt.Fprint(e.stdout, answer.Script)
		return err
	case !e.machine():
		return nil
	case o.out != "":
		return e.printMachine(scriptFile{o.out, answer.ExpiresAt})
	}
	return e.printMachine(answer)
}
