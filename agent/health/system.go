package health

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// normalOffset is a difference to the server's clock that the time of a response may cause.
const normalOffset = 10 * time.Second

// maxMounts bounds the file systems of a sample.
const maxMounts = 64

// ServiceNames are the services that a GPU node needs where they are installed and enabled.
func ServiceNames() []string {
	return []string{"nvidia-fabricmanager.service", "nvidia-persistenced.service"}
}

func (m *Monitor) path(name string) string { return filepath.Join(m.conf.Root, name) }

// readServices is the source of host.InputServices.
func (m *Monitor) readServices(ctx context.Context) (reading, error) {
	if m.conf.Services == nil {
		return nil, nil //nolint:nilnil // a host without systemd has none
	}
	list, err := m.conf.Services(ctx)
	return func(s *host.Sample) { s.Services = list }, err
}

// readMemory is the source of host.InputMemory.
func (m *Monitor) readMemory(context.Context) (reading, error) {
	file, err := os.Open(m.path("/proc/meminfo"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // as outside Linux
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	memory := host.Memory{}
	scan := bufio.NewScanner(file)
	for scan.Scan() {
		key, value, _ := strings.Cut(scan.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch key {
		case "MemTotal":
			memory.TotalBytes = kib << 10
		case "MemAvailable":
			memory.AvailableBytes = kib << 10
		}
	}
	if memory.TotalBytes <= 0 || memory.AvailableBytes <= 0 {
		return nil, errors.Join(errors.New("unexpected content of /proc/meminfo"), scan.Err())
	}
	return func(s *host.Sample) { s.Memory = &memory }, nil
}

// readClock is the source of host.InputClock: whether systemd says that the clock is synchronized, and
// the difference to the server's clock. A host without either has no source.
func (m *Monitor) readClock(ctx context.Context) (reading, error) {
	clock := host.Clock{Synchronized: true}
	known := false
	if m.conf.ClockOffset != nil {
		if offset, ok := m.conf.ClockOffset(); ok {
			known = true
			if offset.Abs() > normalOffset {
				clock.Offset = offset
			}
		}
	}
	if path, err := exec.LookPath("timedatectl"); err == nil && m.conf.Services != nil {
		out, _, err := command.Runner{}.Run(ctx, 4<<10, path, "show")
		if err != nil {
			return nil, errors.New("timedatectl does not answer")
		}
		list := strings.Split(out, "\n")
		synchronized := slices.Contains(list, "NTPSynchronized=yes")
		if synchronized || slices.Contains(list, "NTP=yes") {
			known, clock.Synchronized = true, synchronized
		}
	}
	if !known {
		return nil, nil //nolint:nilnil // there is no source of the time
	}
	return func(s *host.Sample) { s.Clock = &clock }, nil
}

// mount is a line of mountinfo.
type mount struct {
	device   string // major:minor
	path     string
	source   string
	readOnly bool
}

// readDisks is the source of host.InputDisks: the file systems on block devices, once for each device.
func (m *Monitor) readDisks(context.Context) (reading, error) {
	// Of process 1, because the agent's unit has its own view, in which all is read-only.
	raw, err := os.ReadFile(m.path("/proc/1/mountinfo"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // as outside Linux
	}
	if err != nil {
		return nil, err
	}
	fstab, _ := os.ReadFile(m.path("/etc/fstab")) // a host without one declares nothing as read-only
	readOnly := readOnlyMounts(string(fstab))
	var list []host.Disk
	seen := map[string]bool{}
	for _, one := range parseMounts(string(raw)) {
		if seen[one.device] || len(list) == maxMounts {
			continue
		}
		d := host.Disk{Name: one.path, ReadOnly: one.readOnly && !readOnly[one.path]}
		var st syscall.Statfs_t
		if m.visible(one) && syscall.Statfs(m.path(one.path), &st) == nil {
			size := int64(st.Bsize) //nolint:unconvert // an int32 elsewhere
			d.TotalBytes, d.FreeBytes = int64(st.Blocks)*size, int64(st.Bavail)*size
		}
		seen[one.device] = true
		list = append(list, d)
	}
	return func(s *host.Sample) { s.Disks = list }, nil
}

// visible reports whether the agent sees the file system at its path: the sandbox of its unit hides
// some.
func (m *Monitor) visible(one mount) bool {
	fi, err := os.Stat(m.path(one.path))
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && deviceOf(uint64(st.Dev)) == one.device //nolint:unconvert // an int32 elsewhere
}

// deviceOf is a device number as mountinfo writes it, on Linux.
func deviceOf(dev uint64) string {
	major := dev>>8&0xfff | dev>>32&^uint64(0xfff)
	minor := dev&0xff | dev>>12&^uint64(0xff)
	return strconv.FormatUint(major, 10) + ":" + strconv.FormatUint(minor&0xffffffff, 10)
}

// parseMounts returns the mounts of whole block devices; see proc_pid_mountinfo(5).
func parseMounts(raw string) (list []mount) {
	for line := range strings.Lines(raw) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(super) < 3 {
			continue
		}
		kind, source, options := super[0], super[1], strings.Split(super[2], ",")
		fixed := slices.Contains([]string{"squashfs", "iso9660", "erofs", "udf", "cramfs"}, kind) // read-only by their nature
		if !strings.HasPrefix(source, "/dev/") || strings.HasPrefix(source, "/dev/loop") || fixed || fields[3] != "/" {
			continue
		}
		list = append(list, mount{device: fields[2], path: unescape(fields[4]), source: source, readOnly: slices.Contains(options, "ro")})
	}
	return list
}

// unescape replaces the octal escapes of a path in mountinfo and fstab.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// readOnlyMounts returns the mount points that fstab mounts read-only.
func readOnlyMounts(fstab string) map[string]bool {
	list := map[string]bool{}
	for line := range strings.Lines(fstab) {
		fields := strings.Fields(line)
		if len(fields) >= 4 && !strings.HasPrefix(fields[0], "#") && slices.Contains(strings.Split(fields[3], ","), "ro") {
			list[unescape(fields[1])] = true
		}
	}
	return list
}
