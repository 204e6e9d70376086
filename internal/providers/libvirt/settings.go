package libvirt

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Mode says what the provider does with its commands.
type Mode string

// The modes.
const (
	// Real runs virsh.
	Real Mode = "real"
	// Recorder runs the commands against domains in memory and records them. There are no
	// machines, and the domains end with the process.
	Recorder Mode = "recorder"
	// Disabled makes every call fail with machine.ReasonDisabled.
	Disabled Mode = "disabled"
)

// Settings configure the provider.
type Settings struct {
	// Mode defaults to Disabled.
	Mode Mode
	// URI is the libvirt connection, on this host. Defaults to qemu:///system.
	URI string
	// Virsh is the program. Defaults to virsh in PATH.
	Virsh string
	// Env is the environment of this process, of which virsh receives the variables that it
	// needs.
	Env []string
	// ImageBase is the folder with KernelFile and InitramfsFile.
	ImageBase string
	// StateDir is the folder of consoles, disks and boot files. The provider creates it with mode 0700,
	// and keeps the mode of an existing one: a QEMU that runs as another user must be able to
	// search it (mode 0711).
	StateDir string
	// QEMUUser is the ID of the user that QEMU runs as, if that is not the worker's user and
	// libvirt does not change the owner of files. It requires a worker that runs as root.
	// Defaults to 0: no file changes its owner.
	QEMUUser int
	// Owner is the name of this installation. Domains of another owner are not touched.
	Owner string
	// DomainType is qemu, which emulates the CPU, or kvm. Defaults to qemu.
	DomainType string
	// Hosts are names that machines resolve without DNS, for a node API whose name is not in
	// DNS. A machine reaches this host at 10.0.2.2.
	Hosts map[string]string
	// NetbootPort is the port on 127.0.0.1 at which ImageServer serves the image. Machines boot
	// from it with iPXE. Defaults to 0: QEMU loads the image.
	NetbootPort int
	// IPXE is the file with iPXE. Defaults to that of Debian's package ipxe.
	IPXE string
	// BootTimeout bounds the time from the start of a machine until the first request of its
	// agent. Defaults to 5 min.
	BootTimeout time.Duration
	// CallTimeout bounds one command. Defaults to 30 s.
	CallTimeout time.Duration
}

// The files of ImageBase, which ./task vm-image builds.
const (
	KernelFile    = "vmlinuz"
	InitramfsFile = "initramfs.cpio"
)

const (
	defaultURI     = "qemu:///system"
	defaultTimeout = 30 * time.Second
	defaultBoot    = 5 * time.Minute
)

func (s Settings) withDefaults() Settings {
	if s.Mode == "" {
		s.Mode = Disabled
	}
	if s.URI == "" {
		s.URI = defaultURI
	}
	if s.Virsh == "" {
		s.Virsh = "virsh"
	}
	if s.IPXE == "" {
		s.IPXE = defaultIPXE
	}
	if s.DomainType == "" {
		s.DomainType = "qemu"
	}
	if s.BootTimeout <= 0 {
		s.BootTimeout = defaultBoot
	}
	if s.CallTimeout <= 0 {
		s.CallTimeout = defaultTimeout
	}
	return s
}

// Validate returns all faults of the settings, by name of the field. Disabled needs no others.
func (s Settings) Validate() error {
	s = s.withDefaults()
	if s.Mode == Disabled {
		return nil
	}
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if s.Mode != Real && s.Mode != Recorder {
		fault("the mode is %q, not real, recorder or disabled", s.Mode)
	}
	if s.Owner == "" {
		fault("the owner is empty")
	}
	if s.DomainType != "qemu" && s.DomainType != "kvm" {
		fault("the domain type is %q, not qemu or kvm", s.DomainType)
	}
	if !filepath.IsAbs(s.StateDir) {
		fault("the state folder %q is not an absolute path", s.StateDir)
	}
	if s.Mode == Real && !filepath.IsAbs(s.ImageBase) {
		fault("POWERNODE_IMAGE_BASE: %q is not the absolute path of a folder with an image; build one with ./task vm-image", s.ImageBase)
	}
	if s.QEMUUser < 0 {
		fault("GPUAAS_LIBVIRT_QEMU_UID: %d is not the ID of a user", s.QEMUUser)
	}
	if s.NetbootPort < 0 || s.NetbootPort > 65535 {
		fault("GPUAAS_LIBVIRT_NETBOOT_PORT: %d is not a port from 1 to 65535", s.NetbootPort)
	}
	if !filepath.IsAbs(s.IPXE) {
		fault("GPUAAS_LIBVIRT_IPXE: %q is not an absolute path", s.IPXE)
	}
	for name, address := range s.Hosts {
		if _, err := netip.ParseAddr(address); err != nil {
			fault("GPUAAS_LIBVIRT_HOSTS: the address %q of host %q is not an IP address", address, name)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return schema.NewError(schema.KindInvalidRequest, "libvirt provider: %s", strings.Join(faults, "; "))
}

// Name is the provider's name in the inventory.
const Name = "libvirt"

// What the provider offers.
const (
	Region       = "region-local-qemu"
	SmallType    = "type-qemu-1cpu-512mb"
	LargeType    = "type-qemu-2cpu-4gb"
	DefaultImage = "default"
)

// Info describes the provider with these settings.
func (s Settings) Info() machine.Info {
	info := machine.Info{Name: Name, Creates: true}
	info.Regions, info.Images = []string{Region}, []string{DefaultImage}
	info.Types = []machine.Type{{ID: SmallType, CPUs: 1, MemoryMiB: 512}, {ID: LargeType, CPUs: 2, MemoryMiB: 4096}}
	info.Defaults = machine.Options{Region: Region, Type: SmallType, Image: DefaultImage} // as size chooses
	info.Limits = machine.Limits{Create: 2 * time.Minute, Boot: s.withDefaults().BootTimeout, Delete: 2 * time.Minute}
	if s.withDefaults().Mode == Real {
		info.Host, _ = os.Hostname() // a host without a name has only one worker
	}
	if s.withDefaults().Mode == Disabled {
		info.Disabled = "POWERNODE_LIBVIRT_MODE is disabled"
	}
	return info
}

// size checks the spec against what the provider offers and returns its type. Empty values select
// the only region and image, and the smallest type.
func (s Settings) size(m machine.Spec) (machine.Type, error) {
	info := s.Info()
	if m.Region != "" && !slices.Contains(info.Regions, m.Region) {
		return machine.Type{}, machine.Errorf(machine.ReasonRejected, "libvirt has no region %q; it has %s", m.Region, Region)
	}
	if m.Image != "" && !slices.Contains(info.Images, m.Image) {
		return machine.Type{}, machine.Errorf(machine.ReasonRejected, "libvirt has no image %q; it has %s", m.Image, DefaultImage)
	}
	if m.Spot {
		return machine.Type{}, machine.Errorf(machine.ReasonRejected, "libvirt has no spot machines")
	}
	for _, t := range info.Types {
		if t.ID == m.Type || m.Type == "" {
			return t, nil
		}
	}
	return machine.Type{}, machine.Errorf(machine.ReasonRejected, "libvirt has no type %q; it has %s and %s", m.Type, SmallType, LargeType)
}

// checkHost rejects what is not a host name (RFC 1123) that a Linux kernel accepts.
func checkHost(host string) error {
	valid := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	if len(host) > maxHost || !valid.MatchString(host) {
		return machine.Errorf(machine.ReasonRejected, "%.80q is not a host name of at most %d characters", host, maxHost)
	}
	return nil
}

const maxHost = 64
