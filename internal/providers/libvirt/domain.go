package libvirt

import (
	"encoding/xml"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// namePrefix and the instance ID are a domain's name.
const namePrefix = "gpuaas-"

// domainXML is the part of libvirt's domain format that the provider uses.
type domainXML struct {
	XMLName  xml.Name    `xml:"domain"`
	Type     string      `xml:"type,attr,omitempty"`
	Name     string      `xml:"name"`
	UUID     string      `xml:"uuid"`
	Metadata metadataXML `xml:"metadata"`
	Memory   memoryXML   `xml:"memory"`
	CPUs     int         `xml:"vcpu"`
	SysInfo  []sysInfo   `xml:"sysinfo"`
	OS       osXML       `xml:"os"`
	ACPI     *struct{}   `xml:"features>acpi"`
	APIC     *struct{}   `xml:"features>apic"`
	PowerOff string      `xml:"on_poweroff"`
	Reboot   string      `xml:"on_reboot"`
	Crash    string      `xml:"on_crash"`
	Devices  devicesXML  `xml:"devices"`
}

// metadataXML contains our element, which libvirt stores and returns unchanged.
type metadataXML struct {
	Tag *tagXML `xml:"https://github.com/gpuaas/gpuaas/machine/1 machine"`
}

// tagXML says whose machine the domain is.
type tagXML struct {
	Owner     string `xml:"owner"`
	Instance  string `xml:"instance"`
	Node      string `xml:"node"`
	Host      string `xml:"host"`
	Region    string `xml:"region"`
	Type      string `xml:"type"`
	CreatedAt string `xml:"created_at"`
}

type memoryXML struct {
	Unit string `xml:"unit,attr"`
	Size int    `xml:",chardata"`
}

type sysInfo struct {
	Type    string   `xml:"type,attr"`
	System  *entries `xml:"system"`
	Entries []entry  `xml:"entry"`
}

type entries struct {
	Entries []entry `xml:"entry"`
}

type entry struct {
	Name  string `xml:"name,attr"`
	File  string `xml:"file,attr,omitempty"`
	Value string `xml:",chardata"`
}

type osXML struct {
	Type    osType   `xml:"type"`
	Kernel  string   `xml:"kernel"`
	Initrd  string   `xml:"initrd,omitempty"`
	CmdLine string   `xml:"cmdline"`
	BIOS    *biosXML `xml:"bios"`
	SMBIOS  struct {
		Mode string `xml:"mode,attr"`
	} `xml:"smbios"`
}

// biosXML makes the BIOS print to the serial console too.
type biosXML struct {
	UseSerial string `xml:"useserial,attr"`
}

type osType struct {
	Arch    string `xml:"arch,attr,omitempty"`
	Machine string `xml:"machine,attr,omitempty"`
	Name    string `xml:",chardata"`
}

type devicesXML struct {
	Disk      *diskXML `xml:"disk"`
	Interface device   `xml:"interface"`
	Serial    device   `xml:"serial"`
	Balloon   device   `xml:"memballoon"`
}

type device struct {
	Type   string      `xml:"type,attr,omitempty"`
	Model  string      `xml:"model,attr,omitempty"`
	Driver *driverXML  `xml:"model"`
	Source *consoleXML `xml:"source"`
}

// diskXML is the disk of a machine.
type diskXML struct {
	Type   string     `xml:"type,attr"`
	Device string     `xml:"device,attr"`
	Driver diskDriver `xml:"driver"`
	Source diskSource `xml:"source"`
	Target diskTarget `xml:"target"`
	Serial string     `xml:"serial"`
}

type diskDriver struct {
	Name string `xml:"name,attr"`
	Type string `xml:"type,attr"`
}

type diskSource struct {
	File string `xml:"file,attr"`
}

type diskTarget struct {
	Name string `xml:"dev,attr"`
	Bus  string `xml:"bus,attr"`
}

type driverXML struct {
	Type string `xml:"type,attr"`
}

type consoleXML struct {
	Path   string `xml:"path,attr"`
	Append string `xml:"append,attr,omitempty"`
}

// cmdLine is the kernel's command line. A machine whose kernel panics restarts after 10 s.
const cmdLine = "console=ttyS0 panic=10 quiet loglevel=3"

// domainName returns the name of an instance's domain.
func domainName(instanceID string) string { return namePrefix + instanceID }

// instanceOf returns the instance ID of a domain's name.
func instanceOf(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, namePrefix)
	return id, ok && schema.IsID(id)
}

// newDomain returns the definition of a machine without its boot data.
func (p *Provider) newDomain(s machine.Spec, t machine.Type, at time.Time) domainXML {
	d := domainXML{
		Type: p.settings.DomainType, Name: domainName(s.InstanceID), UUID: s.InstanceID,
		Metadata: metadataXML{&tagXML{
			Owner: p.settings.Owner, Instance: s.InstanceID, Node: s.NodeID, Host: s.Host, Region: Region, Type: t.ID,
			CreatedAt: at.UTC().Format(time.RFC3339),
		}},
		Memory: memoryXML{"MiB", t.MemoryMiB}, CPUs: t.CPUs,
		SysInfo: []sysInfo{{Type: "smbios", System: &entries{[]entry{
			{Name: "manufacturer", Value: "gpuaas"}, {Name: "product", Value: t.ID}, {Name: "serial", Value: s.InstanceID}, {Name: "uuid", Value: s.InstanceID},
		}}}},
		OS: osXML{Type: osType{"x86_64", "q35", "hvm"}, Kernel: p.files.kernel(), Initrd: p.files.initramfs(), CmdLine: cmdLine},
		// Without ACPI the guest finds no firmware configuration.
		ACPI: &struct{}{}, APIC: &struct{}{},
		PowerOff: "destroy", Reboot: "restart", Crash: "preserve",
		Devices: devicesXML{
			Disk:      &diskXML{"file", "disk", diskDriver{"qemu", "raw"}, diskSource{p.files.disk(s.InstanceID)}, diskTarget{"vda", "virtio"}, machine.StateDiskSerial},
			Interface: device{Type: "user", Driver: &driverXML{"virtio"}},
			Serial:    device{Type: "file", Source: &consoleXML{p.files.console(s.InstanceID), "on"}},
			Balloon:   device{Model: "none"},
		},
	}
	d.OS.SMBIOS.Mode = "sysinfo"
	if p.settings.NetbootPort != 0 {
		d.OS.netboot(p.files.ipxe, p.settings.NetbootPort)
	}
	return d
}

// withBoot adds the boot data. The definition names only the file: QEMU's arguments contain what
// a definition contains.
func (d domainXML) withBoot(file string) domainXML {
	d.SysInfo = append(slices.Clip(d.SysInfo), sysInfo{Type: "fwcfg", Entries: []entry{{Name: machine.BootDocumentName, File: file}}})
	return d
}

func (d domainXML) encode() ([]byte, error) {
	text, err := xml.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, machine.Wrap(machine.ReasonRejected, err, "encoding the definition of domain %s", d.Name)
	}
	return append(text, '\n'), nil
}

// owned reports whether the domain is the machine of an instance of the owner.
func (d domainXML) owned(owner string) bool {
	id, ok := instanceOf(d.Name)
	tag := d.Metadata.Tag
	return ok && tag != nil && tag.Owner == owner && tag.Instance == id && d.UUID == id
}
