package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// agentPath is where the image has the agent.
const agentPath = trust.DefaultInstallRoot + "/bin/gpuaas-node-agent"

// modulesFile lists the kernel modules of the image in the order in which they are loaded.
const modulesFile = "/lib/modules/order"

func main() {
	if os.Getpid() == 1 {
		first()
	}
	if filepath.Base(os.Args[0]) == "sh" {
		fmt.Fprintln(os.Stderr, "sh:", gate(os.Args))
		os.Exit(126) //nolint:forbidigo // in a main package
	}
	runWorkload()
}

// first is the first process of the machine. It does not return.
func first() {
	err := run()
	if err != nil {
		say("%v", err)
	}
	say("switching the machine off")
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		say("switching off: %v", err)
	}
	select {} // the kernel panics when its first process ends
}

// say prints a line with the time since the kernel started to the console.
func say(format string, args ...any) {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up)
	fmt.Fprintf(os.Stderr, "gpuaas-init %.2f s: %s\n", time.Duration(up.Nano()).Seconds(), fmt.Sprintf(format, args...))
}

// run sets the machine up and runs the agent until the node is removed.
func run() error {
	say("started")
	if err := mounts(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := mountState(); err != nil {
		return err
	}
	document, kept, err := readKept(keptFile)
	if err == nil && !kept {
		document, err = readBoot(bootFile)
	}
	if err != nil {
		return err
	}
	if err := name(document); err != nil {
		return err
	}
	if err := network(); err != nil {
		return err
	}
	say("network configured")
	if kept {
		say("the machine has its configuration from an earlier boot")
	} else if err := setUp(document); err != nil {
		return err
	}
	return supervise()
}

// setUp exchanges the reference for the bundle and writes the agent's configuration.
func setUp(document machine.BootDocument) error {
	client, err := newClient(document)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	bundle, err := fetch(ctx, client, document, time.Second, say)
	if err != nil {
		return fmt.Errorf("fetching the bundle: %w", err)
	}
	say("bundle received for node %s", bundle.NodeID)
	if err := configure("/", bundle); err != nil {
		return fmt.Errorf("writing the agent's configuration: %w", err)
	}
	if err := addWorkloads("/", bundle.WorkloadDriver); err != nil {
		return fmt.Errorf("adding the workloads of the image: %w", err)
	}
	unix.Sync()
	return keep(keptFile, document)
}

// mounts mounts what the agent needs, except for its state.
func mounts() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []struct {
		kind, path, data string
		flags            uintptr
	}{
		{"proc", "/proc", "", safe | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", safe | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
		{"tmpfs", "/run", "mode=0755", safe},
		{"tmpfs", "/tmp", "mode=1777", safe},
	} {
		if err := os.MkdirAll(m.path, 0o755); err != nil { //nolint:gosec // a mount point
			return err
		}
		if err := unix.Mount(m.kind, m.path, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.path, err)
		}
	}
	return nil
}

// loadModules loads the image's modules.
func loadModules() error {
	order, err := os.ReadFile(modulesFile)
	if err != nil {
		return err
	}
	for module := range strings.FieldsSeq(string(order)) {
		if err := loadModule(filepath.Join(filepath.Dir(modulesFile), module)); err != nil {
			return fmt.Errorf("loading %s: %w", module, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	return unix.FinitModule(int(file.Fd()), "", 0)
}

// name sets the host name and writes the files of the resolver.
func name(d machine.BootDocument) error {
	if err := unix.Sethostname([]byte(d.Host)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := os.WriteFile("/etc/hosts", []byte(hostsFile(d)), 0o644); err != nil { //nolint:gosec // public
		return err
	}
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver "+resolver+"\n"), 0o644) //nolint:gosec // public
}

// The addresses of QEMU's user network. Each machine has a network of its own.
const (
	address  = "10.0.2.15/24"
	gateway  = "10.0.2.2"
	resolver = "10.0.2.3"
)

// network configures the loopback and the first other interface.
func network() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("listing the network interfaces: %w", err)
	}
	configured := false
	for _, link := range links {
		loopback := link.Attrs().Name == "lo"
		if !loopback && (configured || link.Type() != "device") {
			continue
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("interface %s: %w", link.Attrs().Name, err)
		}
		if loopback {
			continue
		}
		if err := configureLink(link); err != nil {
			return fmt.Errorf("interface %s: %w", link.Attrs().Name, err)
		}
		configured = true
	}
	if !configured {
		return fmt.Errorf("the machine has no network interface")
	}
	return nil
}

func configureLink(link netlink.Link) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: parseIP(gateway)})
}
