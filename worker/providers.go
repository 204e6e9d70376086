package worker

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/manual"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ProviderSettings is the configuration of the providers of machines.
type ProviderSettings struct {
	NodeURL      string            `env:"GPUAAS_NODE_PUBLIC_URL" help:"URL at which new machines reach the node API: https://name:port, as for gpuaas-api. Required with a provider that creates machines."`
	LibvirtMode  string            `env:"POWERNODE_LIBVIRT_MODE" envDefault:"disabled" help:"Provider libvirt: real creates virtual machines on this host, recorder only records the commands, disabled refuses every call."`
	ImageBase    string            `env:"POWERNODE_IMAGE_BASE" example:"/usr/share/gpuaas/vm-image" help:"Folder with the kernel and the initramfs of virtual machines (./task vm-image)."`
	LibvirtURI   string            `env:"GPUAAS_LIBVIRT_URI" envDefault:"qemu:///system" help:"Connection to libvirt, on this host."`
	LibvirtState string            `env:"GPUAAS_LIBVIRT_STATE_DIR" envDefault:"/var/lib/gpuaas/libvirt" help:"Folder of the consoles, disks and boot files of virtual machines."`
	LibvirtUID   int               `env:"GPUAAS_LIBVIRT_QEMU_UID" help:"ID of the user that QEMU runs as, if libvirt does not change the owner of files. Only for a worker that runs as root."`
	LibvirtType  string            `env:"GPUAAS_LIBVIRT_DOMAIN_TYPE" envDefault:"qemu" help:"qemu, which emulates the CPU, or kvm."`
	LibvirtHosts map[string]string `env:"GPUAAS_LIBVIRT_HOSTS" example:"node-api.example.com:10.0.2.2" help:"Addresses of names that virtual machines resolve without DNS, as NAME:ADDRESS separated by commas. A virtual machine reaches this host at 10.0.2.2."`
	LibvirtPort  int               `env:"GPUAAS_LIBVIRT_NETBOOT_PORT" example:"8470" help:"Port on 127.0.0.1 at which this worker serves the image. With it, virtual machines load the image over HTTP with iPXE. Each worker of the host needs a port of its own. Default: QEMU loads the image."`
	LibvirtIPXE  string            `env:"GPUAAS_LIBVIRT_IPXE" envDefault:"/usr/lib/ipxe/ipxe.lkrn" help:"File with iPXE for GPUAAS_LIBVIRT_NETBOOT_PORT, as in Debian's package ipxe."`
	LibvirtBoot  time.Duration     `env:"GPUAAS_LIBVIRT_BOOT_TIMEOUT" envDefault:"5m" help:"How long a virtual machine may take from its start until the first request of its agent. Then its operation parks."`
	MAASURL      string            `env:"MAAS_API_BASE_URL" example:"https://maas.example.com:5443/MAAS" help:"URL of MAAS. Provider maas is disabled without it."`
	MAASToken    schema.Secret     `env:"MAAS_API_TOKEN" exclusive:"true" help:"API key of MAAS: consumer:token:secret. Exclusive with its file and with GPUAAS_MAAS_TOKEN_VAULT."`
	MAASVault    bool              `env:"GPUAAS_MAAS_TOKEN_VAULT" envDefault:"false" help:"true reads the API key of MAAS from Vault, when it is needed: field api_key of the secret maas in kv-providers. A replaced key needs no restart."`
	MAASTimeout  int               `env:"MAAS_API_TIMEOUT_MS" envDefault:"10000" help:"Time limit of one request to MAAS in milliseconds, 100 to 30000."`
	MAASZones    []string          `env:"GPUAAS_MAAS_ZONES" help:"Zones of MAAS that a node can be provisioned in, as its region."`
	MAASImages   []string          `env:"GPUAAS_MAAS_IMAGES" help:"Images of MAAS (distro_series) that a node can be provisioned with. Without one, MAAS deploys its default."`
	MAASTypes    []string          `env:"GPUAAS_MAAS_TYPES" example:"h100:64:524288:8:h100+nvme" help:"Types that a node can be provisioned with, as ID:CPUS:MEMORY_MIB:GPUS:TAG+TAG: the least CPUs and memory of a machine, its GPUs, and the tags that MAAS sets on it. Without them, MAAS chooses any machine."`
	MAASPool     string            `env:"GPUAAS_MAAS_POOL" help:"Resource pool of MAAS from which machines are allocated. Default: any."`
	MAASTags     []string          `env:"GPUAAS_MAAS_TAGS" help:"Tags of MAAS that every allocated machine has."`
	MAASErase    string            `env:"GPUAAS_MAAS_ERASE" envDefault:"quick" help:"What the release of a machine does to its disks: none, quick, secure or full."`

	sources map[string]activities.Source
	// vault and withhold, which keeps a secret out of Temporal, are set before the worker runs
	// activities.
	vault    *vault.Client
	withhold func(schema.Secret)
}

// Check makes the providers, so that faults in their settings are listed with the others.
func (c *ProviderSettings) Check(f *daemon.Faults, env string) {
	c.sources = map[string]activities.Source{}
	for _, open := range []func(string) (activities.Source, error){c.manual, c.libvirt, c.maas} {
		s, err := open(env)
		f.Check(err != nil, "%v", err)
		if err == nil {
			c.sources[s.Name] = s
		}
	}
	c.NodeURL = strings.TrimRight(c.NodeURL, "/")
	if c.creates() {
		err := trust.CheckAPIURL(c.NodeURL)
		f.Check(err != nil, "GPUAAS_NODE_PUBLIC_URL: %v", err)
	}
}

func (c *ProviderSettings) manual(string) (activities.Source, error) { return manual.New(), nil }

func (c *ProviderSettings) libvirt(env string) (activities.Source, error) {
	p, err := libvirt.New(libvirt.Settings{Mode: libvirt.Mode(c.LibvirtMode), URI: c.LibvirtURI, ImageBase: c.ImageBase, StateDir: c.LibvirtState,
		QEMUUser: c.LibvirtUID, Owner: env, DomainType: c.LibvirtType, Hosts: c.LibvirtHosts, NetbootPort: c.LibvirtPort, IPXE: c.LibvirtIPXE, BootTimeout: c.LibvirtBoot,
		Env: os.Environ()})
	if err != nil {
		return activities.Source{}, err
	}
	return p.Source(), nil
}

func (c *ProviderSettings) maas(env string) (activities.Source, error) {
	types, err := maas.ParseTypes(c.MAASTypes)
	if err != nil {
		return activities.Source{}, err
	}
	s := maas.Settings{BaseURL: c.MAASURL, Token: c.MAASToken.Reveal(), Timeout: time.Duration(c.MAASTimeout) * time.Millisecond,
		Installation: env, Zones: c.MAASZones, Images: c.MAASImages, Types: types, Pool: c.MAASPool, Tags: c.MAASTags, Erase: maas.Erase(c.MAASErase)}
	switch {
	case c.MAASVault && !c.MAASToken.Empty():
		return activities.Source{}, schema.NewError(schema.KindInvalidRequest, "GPUAAS_MAAS_TOKEN_VAULT excludes MAAS_API_TOKEN and MAAS_API_TOKEN_FILE")
	case c.MAASVault:
		s.ReadToken = func(ctx context.Context) (schema.Secret, error) {
			token, err := c.vault.ProviderCredential(ctx, maas.Name, maas.ValidToken)
			if err == nil {
				c.withholdKey(token)
			}
			return token, err
		}
	}
	return maas.New(s)
}

// withholdWith sets withhold, and keeps the API key of the settings out of Temporal.
func (c *ProviderSettings) withholdWith(withhold func(schema.Secret)) {
	c.withhold = withhold
	c.withholdKey(c.MAASToken)
}

// withholdKey keeps an API key of MAAS and each of its parts out of Temporal: a request contains the
// parts only.
func (c *ProviderSettings) withholdKey(token schema.Secret) {
	c.withhold(token)
	for part := range strings.SplitSeq(token.Reveal(), ":") {
		c.withhold(schema.NewSecret(part))
	}
}

// creates reports whether a provider is enabled that creates machines.
func (c *ProviderSettings) creates() bool {
	for _, s := range c.sources {
		if s.Creates && s.Disabled == "" {
			return true
		}
	}
	return false
}

// infos returns the descriptions of the providers.
func (c *ProviderSettings) infos() []machine.Info {
	var infos []machine.Info
	for _, s := range c.sources {
		infos = append(infos, s.Info)
	}
	slices.SortFunc(infos, func(a, b machine.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

// describe stores the descriptions of the providers. It is KindInvalidRequest if another worker has
// one of the enabled ones on another host: each of the two would report the machines of the other
// as deleted.
func describe(ctx context.Context, s *store.Inventory, infos []machine.Info) error {
	kept, err := s.PutProviders(ctx, infos)
	for _, i := range kept {
		if i.Disabled == "" {
			return schema.NewError(schema.KindInvalidRequest, "provider %s: a worker on another host than %s has it", i.Name, i.Host).
				WithReason("provider_elsewhere").WithNext("run all workers on the host of the machines; after a move, stop the other worker and wait for " + machine.DescriptionLife.String())
		}
	}
	return err
}

// describeUntil stores the descriptions again until ctx ends, and returns nil then. A database that
// was restored from a backup gets them again.
func describeUntil(ctx context.Context, s *store.Inventory, infos []machine.Info, log *slog.Logger) error {
	tick := time.NewTicker(machine.DescriptionLife / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := describe(ctx, s, infos); err != nil && ctx.Err() == nil {
			log.Warn("cannot store the providers", slog.Any("err", err))
		}
	}
}
