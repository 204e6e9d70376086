package host

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// Host reads facts of the machine. root is "/" or a folder of fixtures.
type Host struct {
	root string
	smi  nvidiaSMI
}

// For returns the same host with programs that run for a task.
func (h Host) For(p command.Runner) Host {
	h.smi.programs = p
	return h
}

// New is the machine whose file system is at root. smi is the path of nvidia-smi, "" to
// look it up in PATH.
func New(root, smi string) Host { return Host{root: root, smi: nvidiaSMI{path: smi}} }

// file is a path of the host.
func (h Host) file(path string) string { return filepath.Join(h.root, path) }

// Collect returns the facts. A fact that the platform does not report stays empty;
// GPUs that do not answer are an error.
func (h Host) Collect(ctx context.Context, now time.Time) (inventory.Facts, error) {
	gpus, err := h.smi.list(ctx)
	if err != nil {
		return inventory.Facts{}, err
	}
	f := inventory.Facts{
		OS: h.osName(), Kernel: h.kernel(), Arch: runtime.GOARCH, BootID: BootID(h.root),
		GPUs: gpus, NICs: nics(), Disks: h.disks(), MemoryBytes: h.memory().total, CollectedAt: now.UTC(),
	}
	f.CPUs, f.CPUModel = h.cpus()
	f.Hostname, err = os.Hostname()
	return f, err
}

// osName is PRETTY_NAME of os-release, or the platform's name.
func (h Host) osName() string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := os.ReadFile(h.file(path))
		if err != nil {
			continue
		}
		if vars, err := envfile.Parse(string(text)); err == nil && vars["PRETTY_NAME"] != "" {
			return vars["PRETTY_NAME"]
		}
	}
	return runtime.GOOS
}

// fields yields the keys and values of a file with a "key: value" on each line.
func (h Host) fields(path string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		text, _ := os.ReadFile(h.file(path)) // absent outside Linux
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			if !yield(strings.TrimSpace(key), strings.TrimSpace(value)) {
				return
			}
		}
	}
}

// cpus counts the processors of the host, not those this process may use.
func (h Host) cpus() (n int, model string) {
	for key, value := range h.fields("/proc/cpuinfo") {
		switch key {
		case "processor":
			n++
		case "model name":
			model = value
		}
	}
	return cmp.Or(n, runtime.NumCPU()), model
}

// memory returns the host's memory in bytes; zero when unknown.
func (h Host) memory() (m space) {
	for key, value := range h.fields("/proc/meminfo") {
		kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
		switch key {
		case "MemTotal":
			m.total = kib << 10
		case "MemAvailable":
			m.free = kib << 10
		}
	}
	m.total = cmp.Or(m.total, platformMemory())
	return m
}

// disks lists the block devices that have a size, or the root file system if there are
// none.
func (h Host) disks() []inventory.Disk {
	list := []inventory.Disk{}
	entries, _ := os.ReadDir(h.file("/sys/block")) // absent outside Linux
	for _, e := range entries {
		dir := h.file("/sys/block/" + e.Name())
		sectors, err := strconv.ParseInt(readLine(dir+"/size"), 10, 64)
		virtual := slices.ContainsFunc([]string{"loop", "ram", "zram", "sr", "fd"}, func(p string) bool {
			return strings.HasPrefix(e.Name(), p)
		})
		if err != nil || sectors <= 0 || virtual {
			continue
		}
		list = append(list, inventory.Disk{Name: e.Name(), SizeBytes: sectors * 512, Model: readLine(dir + "/device/model")})
	}
	if len(list) == 0 {
		if s, err := spaceOf(h.root); err == nil {
			list = append(list, inventory.Disk{Name: h.root, SizeBytes: s.total})
		}
	}
	return list
}

func readLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// nics lists the network interfaces other than loopback.
func nics() []inventory.NIC {
	list := []inventory.NIC{}
	ifaces, _ := net.Interfaces()
	for _, i := range ifaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		n := inventory.NIC{Name: i.Name, MAC: i.HardwareAddr.String(), Up: i.Flags&net.FlagUp != 0}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, a.String())
		}
		list = append(list, n)
	}
	return list
}

// size formats bytes for operators.
func size(n int64) string {
	const gib = 1 << 30
	if n < gib {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/gib)
}
