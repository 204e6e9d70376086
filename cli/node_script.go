package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeScript(e *env) *cobra.Command {
	var out string
	var fetchRef bool
	c := e.command("bootstrap-script NODE", "Print a script that installs the agent on a node",
		`Prints a script that installs the agent, its env file, the CA bundle and the systemd
unit on a Debian or Ubuntu host. Use it for the first boot of a node, and for a node
whose files are too damaged for reissue-enrollment. The command starts the enrollment,
or the reissue of an enrolled node, unless one is waiting already. It voids earlier
tokens of the node.

Each script works on one host, once. On a host that was set up before, create a new
script and run it with --force.

The script contains the token. With --fetch-ref it contains a one-time reference to the
bundle instead, for cloud-init and other places that many can read. --out writes a file
that only its owner can read.`,
		`  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh
  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh -s -- --force
  gpuaas node bootstrap-script gpu-17 --fetch-ref --out user-data.sh`,
		func(ctx context.Context, arg string) error {
			ctl := e.apiControl()
			t, err := ctl.find(ctx, arg)
			if err != nil {
				return err
			}
			file, err := newSecretFile(out)
			if err != nil {
				return err
			}
			defer file.discard()
			answer, err := decode[wire.BootstrapScriptResponse](ctl.MakeBootstrapScript(ctx, t.id, nil, wire.BootstrapScriptRequest{FetchRef: fetchRef}))
			if err != nil {
				return t.inWords(err)
			}
			if err := file.write(answer.Script); err != nil {
				return err
			}
			secret := "the token"
			if fetchRef {
				secret = "a one-time reference"
			}
			e.message("the script contains %s, valid until %s", secret, e.stamp(answer.ExpiresAt))
			if out == "" {
				if e.machine() {
					return e.printMachine(answer)
				}
				_, err := fmt.Fprint(e.stdout, answer.Script)
				return err
			}
			e.message("written to %s (mode 0600)", out)
			if !e.machine() {
				return nil
			}
			return e.printMachine(struct {
				File      string    `json:"file"`
				ExpiresAt time.Time `json:"expires_at"`
			}{out, answer.ExpiresAt})
		})
	c.Flags().StringVar(&out, "out", "", "file to write the script to")
	c.Flags().BoolVar(&fetchRef, "fetch-ref", false, "put a one-time reference into the script instead of the token")
	return c
}
