package cli

import (
	"context"
	"fmt"

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
or the reissue of an enrolled node, unless one is already in progress. It voids earlier
tokens of the node.

Each script works once, on one host. For a host that was set up before, create a new
script and run it with --force.

The script contains the token. With --fetch-ref it contains a one-time reference to the
bundle instead, for user data and other places that many can read. --out writes a file
that only its owner can read.`,
		`  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh
  gpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh -s -- --force
  gpuaas node bootstrap-script gpu-17 --fetch-ref --out user-data.sh`,
		func(ctx context.Context, arg string) error {
			file, err := newSecretFile(out)
			if err != nil {
				return err
			}
			defer file.discard()
			response, err := decode[wire.BootstrapScriptResponse](e.api().MakeBootstrapScript(ctx, arg, nil, wire.BootstrapScriptRequest{FetchRef: fetchRef}))
			if err != nil {
				return target{id: arg, host: arg}.inError(err)
			}
			if err := file.write(response.Script); err != nil {
				return err
			}
			secret := "the token"
			if fetchRef {
				secret = "a one-time reference"
			}
			e.message("the script contains %s, valid until %s", secret, e.stamp(response.ExpiresAt))
			if response.Note != "" {
				e.message("note: %s", response.Note)
			}
			switch {
			case out == "" && e.machine():
				return e.printMachine(response)
			case out == "":
				_, err := fmt.Fprint(e.stdout, response.Script)
				return err
			}
			e.message("written to %s (mode 0600)", out)
			if !e.machine() {
				return nil
			}
			return e.printMachine(map[string]any{"file": out, "expires_at": response.ExpiresAt})
		})
	c.Flags().StringVar(&out, "out", "", "file to write the script to")
	c.Flags().BoolVar(&fetchRef, "fetch-ref", false, "put a one-time reference into the script instead of the token")
	return c
}
