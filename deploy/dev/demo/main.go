// Command demo runs this machine through a node's lifecycle on the real stack, with
// an operator's commands. ./task demo runs it.
//
//	demo [--once] [--vm] [--dir DIR] [--ports-from N] [--cast FILE]
//
// The stack stays up afterwards. With --once the demo uses a temporary folder and
// free ports and removes everything. With --vm the node is a virtual machine that the demo
// creates; ./task demo-vm runs it. With --cast the demo records its output.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/gpuaas/gpuaas/test/stack"
)

// options are the demo's flags.
type options struct {
	once, vm  bool
	dir       string
	portsFrom int
	cast      string
	// own is the temporary folder of a demo with --once.
	own string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx)
	stop()
	os.Exit(code)
}

func run(ctx context.Context) int {
	var o options
	flag.BoolVar(&o.once, "once", false, "use a temporary stack and remove it at the end")
	flag.BoolVar(&o.vm, "vm", false, "create the node as a virtual machine, with libvirt; implies --once")
	flag.StringVar(&o.dir, "dir", "", "folder of the stack (default .dev)")
	flag.IntVar(&o.portsFrom, "ports-from", 0, "first port of the stack (default: the standard ports)")
	flag.StringVar(&o.cast, "cast", "", "`file` for a recording of the output in the format of asciinema")
	flag.Parse()
	o.once = o.once || o.vm
	d, err := newDemo(o)
	if err == nil {
		err = d.run(ctx)
	}
	if d != nil {
		d.finish(err)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	return 0
}

// prepare creates the folder and chooses the ports of a demo with --once.
func (o *options) prepare() error {
	if !o.once {
		return nil
	}
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "gpuaas-demo-")
		if err != nil {
			return err
		}
		// Postgres runs as another user and must be able to pass.
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // a folder to pass through, not to read
			return err
		}
		o.own, o.dir = dir, filepath.Join(dir, "dev")
	}
	if o.portsFrom == 0 {
		port, err := stack.FreePorts(20)
		if err != nil {
			return err
		}
		o.portsFrom = port
	}
	return nil
}
