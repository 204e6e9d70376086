package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/test/libvirtd"
)

// machines is the libvirt daemon of the demo. nil is a demo without one.
type machines struct {
	host  *libvirtd.Host
	vars  []string
	state string
}

func (m *machines) env() []string {
	if m == nil {
		return nil
	}
	return m.vars
}

func (m *machines) close() {
	if m != nil {
		m.host.Close()
	}
}

// machineSteps are the steps with a virtual machine as the node.
func (d *demo) machineSteps() []step {
	return []step{
		{"start libvirt", d.startLibvirt},
		{"stack up", d.up},
		{"register", d.registerMachine},
		{"provision: create the machine, boot it, enroll its agent", d.verb("provision")},
		{"wait for the workload of the machine", d.awaitConsole("workload: started")},
		{"drain: the workload ends in the machine", d.verb("drain", "--yes", "--reason", "demo")},
		{"read the end of the workload on the console", d.awaitConsole("workload: stopped")},
		{"retire", d.verb("retire", "--yes", "--reason", "demo")},
		{"remove: the machine is deleted", d.verb("remove", "--yes", "--reason", "demo")},
		{"check that nothing is left", d.checkLeft},
		{"verify the audit trail", d.verify},
	}
}

func (d *demo) startLibvirt(context.Context) (string, error) {
	host, err := libvirtd.Start()
	if err != nil {
		return "", err
	}
	d.machines = &machines{host: host}
	d.machines.vars, d.machines.state, err = host.Settings(filepath.Join("bin", "vm-image-workload"), libvirt.KernelFile, libvirt.InitramfsFile)
	return "", err
}

func (d *demo) registerMachine(ctx context.Context) (string, error) {
	d.host = "vm-1"
	if err := d.cli.run(ctx, "sku", "add", "vm", "--min-memory", "256MiB"); err != nil {
		return "", err
	}
	return "", d.cli.run(ctx, "node", "register", d.host, "--mode", libvirt.Name, "--sku", "vm", "--region", "region-1")
}

// awaitConsole waits until the console of the machine has the text, and prints its last lines.
func (d *demo) awaitConsole(text string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			lines, err := d.console()
			if err != nil || strings.Contains(lines, text) {
				fmt.Fprintln(os.Stderr, lines)
				return "", err
			}
			select {
			case <-ctx.Done():
				return "", fmt.Errorf("the console of the machine does not have %q within a minute:\n%s", text, lines)
			case <-tick.C:
			}
		}
	}
}

// console returns the lines of the machine's first process and its workload.
func (d *demo) console() (string, error) {
	files, err := filepath.Glob(filepath.Join(d.machines.state, "consoles", "*.log"))
	if err != nil || len(files) != 1 {
		return "", errors.Join(err, fmt.Errorf("%d consoles, not one", len(files)))
	}
	text, err := os.ReadFile(files[0])
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "gpuaas-init ") || strings.HasPrefix(line, "workload: ") {
			lines = append(lines, "  "+strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n"), err
}

// checkLeft fails if a domain or a file of the machine exists.
func (d *demo) checkLeft(ctx context.Context) (string, error) {
	domains, err := d.machines.host.Run(ctx, "list", "--all", "--name")
	if err != nil {
		return "", err
	}
	left := strings.Fields(domains)
	for _, dir := range []string{"consoles", "boot"} {
		files, err := filepath.Glob(filepath.Join(d.machines.state, dir, "*"))
		if err != nil {
			return "", err
		}
		left = append(left, files...)
	}
	if len(left) > 0 {
		return "", fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return "", nil
}
