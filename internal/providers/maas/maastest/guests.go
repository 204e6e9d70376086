package maastest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// Guests are the machines of a double as QEMU processes that boot the image of ./task
// vm-image:workload. A deployed machine starts with what its user data obtained, which cloudInit
// runs. The process ends when the machine loses power. The disk of a deployed system is missing:
// a machine that gets power again boots without an identity, as a virtual machine of the libvirt
// provider does, and switches itself off.
//
// With Guests, a deployment proves that the user data works with a real node API, and that the
// reference enrolls a machine. It does not prove what the image of the operating system does:
// cloud-init itself, the download of the agent's package, and systemd.
type Guests struct {
	// Kernel and Initramfs are the files of the image.
	Kernel, Initramfs string
	// Dir is the folder of the consoles.
	Dir string
	// Hosts are addresses by name, in place of the DNS of the machines' network.
	Hosts map[string]string

	lost    func(id string)
	mu      sync.Mutex
	running map[string]*guest
	// ran is the user data that a machine ran last: cloud-init runs it once for each deployment.
	ran map[string]string
}

// guest is a machine with power.
type guest struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// attach makes the options' machines guests. lost is called when a machine switched itself off.
func (g *Guests) attach(o *Options, lost func(id string)) {
	g.lost, g.running, g.ran = lost, map[string]*guest{}, map[string]string{}
	o.Boot = func(m Machine, userData []byte) {
		g.mu.Lock()
		g.ran[m.SystemID] = string(userData)
		g.mu.Unlock()
		g.start(m, userData)
	}
	o.PowerOn = func(m Machine, userData []byte) {
		g.mu.Lock()
		again := g.ran[m.SystemID] == string(userData)
		g.mu.Unlock()
		if again { // otherwise the deployment has only begun
			g.start(m, nil)
		}
	}
	o.PowerOff = func(m Machine) { g.end(m.SystemID) }
}

// Running returns the IDs of the machines that have a process.
func (g *Guests) Running() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.running))
}

// Console returns the path of a machine's console, to which each start appends.
func (g *Guests) Console(id string) string { return filepath.Join(g.Dir, id+".log") }

func (g *Guests) start(m Machine, userData []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[m.SystemID] != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	started := &guest{stop, make(chan struct{})}
	g.running[m.SystemID] = started
	go func() {
		defer close(started.ended)
		g.run(ctx, m, userData)
		g.mu.Lock()
		delete(g.running, m.SystemID)
		g.mu.Unlock()
		if ctx.Err() == nil {
			g.lost(m.SystemID)
		}
	}()
}

// end ends the process of a machine and waits for it.
func (g *Guests) end(id string) {
	g.mu.Lock()
	running := g.running[id]
	g.mu.Unlock()
	if running != nil {
		running.stop()
		<-running.ended
	}
}

// close ends all machines.
func (g *Guests) close() {
	for _, id := range g.Running() {
		g.end(id)
	}
}

// run runs a machine until it has no power. Errors are on its console.
func (g *Guests) run(ctx context.Context, m Machine, userData []byte) {
	console, err := os.OpenFile(g.Console(m.SystemID), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	defer console.Close() //nolint:errcheck // nothing is buffered
	var boot *machine.BootDocument
	if userData != nil {
		if boot, err = cloudInit(ctx, userData, console); err != nil {
			_, _ = fmt.Fprintf(console, "user data: %v\n", err)
		}
	}
	if boot != nil {
		boot.Host, boot.Hosts = m.Hostname, g.Hosts
	}
	if err := g.qemu(ctx, m, boot, console); err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(console, "qemu: %v\n", err)
	}
}

// qemu runs QEMU until it ends. QEMU reads the boot document from a pipe, so that no file contains
// the reference.
func (g *Guests) qemu(ctx context.Context, m Machine, boot *machine.BootDocument, console io.Writer) error {
	args := []string{"-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "tcg", "-display", "none", "-serial", "stdio",
		"-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.MemoryMiB), "-kernel", g.Kernel, "-initrd", g.Initramfs,
		"-append", "console=ttyS0 panic=10 quiet loglevel=3", "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="}
	if boot != nil {
		args = append(args, "-fw_cfg", "name="+machine.BootDocumentName+",file=/dev/fd/3")
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = console, console, time.Second
	runtime.LockOSThread() // the parent death signal is tied to the forking thread
	defer runtime.UnlockOSThread()
	dieWithParent(cmd)
	if boot == nil {
		return cmd.Run()
	}
	document, err := json.Marshal(boot)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{r}
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return err
	}
	_, _ = w.Write(document) // fails if QEMU has ended
	_ = w.Close()
	return cmd.Wait()
}
