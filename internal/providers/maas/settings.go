// Package maas is the provider of bare-metal machines that a MAAS region controller manages,
// through its API 2.0. An instance allocates a machine, deploys it with user data, and
// releases it.
//
// Start at create.go; owned.go says how the adapter finds its machines.
package maas

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Name is the provider's name in the inventory.
const Name = "maas"

// Erase is what MAAS does to the disks of a machine that is released.
type Erase string

// The values. EraseFull overwrites the disks, which can take hours; EraseQuick wipes their first
// and last 2 MiB; EraseSecure uses the drives' own secure erase and overwrites the others. MAAS
// may erase with EraseNone too, if its setting enable_disk_erasing_on_release is set.
const (
	EraseNone   Erase = "none"
	EraseQuick  Erase = "quick"
	EraseSecure Erase = "secure"
	EraseFull   Erase = "full"
)

// The bounds of Settings.Timeout.
const (
	DefaultTimeout = 10 * time.Second
	minTimeout     = 100 * time.Millisecond
	maxTimeout     = 30 * time.Second // a call of the port has activities.ProviderTimeout
)

// Settings configure the adapter. An empty BaseURL disables it.
type Settings struct {
	// BaseURL is MAAS_API_BASE_URL, for example https://maas.example.com:5443/MAAS.
	BaseURL string
	// Token is MAAS_API_TOKEN, the API key in the form consumer:token:secret.
	Token string
	// ReadToken, in place of Token, reads the API key where it is stored. The adapter calls it when it
	// needs the key, at most every KeepToken, and again after MAAS rejected the key. The error of a call
	// is then that of ReadToken.
	ReadToken func(context.Context) (schema.Secret, error)
	// KeepToken is how long a key from ReadToken is used. Defaults to a minute.
	KeepToken time.Duration
	// Timeout is MAAS_API_TIMEOUT_MS, the limit of one request. Defaults to DefaultTimeout.
	Timeout time.Duration
	// Installation distinguishes the machines of this installation from those of others
	// that share the account.
	Installation string
	// Zones are the zones that an instance can name as its region, Images the values of
	// distro_series, Types the sizes.
	Zones, Images []string
	Types         []Type
	// Pool and Tags constrain every allocation.
	Pool string
	Tags []string
	// Erase is what a release does to the disks. Defaults to EraseQuick.
	Erase Erase
	// PollPower is how often a reset reads the machine's power. Defaults to a second.
	PollPower time.Duration
	// Transport sends the requests. Defaults to a clone of http.DefaultTransport.
	Transport http.RoundTripper
}

// Type is a size of machine: a lower limit of CPUs and memory, and tags that MAAS sets on the
// machines that have it.
type Type struct {
	machine.Type
	Tags []string
}

// Provider allocates machines of MAAS. It implements activities.MachineProvider.
type Provider struct{ *account }

// New returns the provider with its description, or a KindInvalidRequest that names the setting.
func New(s Settings) (activities.Source, error) {
	info := machine.Info{Name: Name, Creates: true,
		Limits: machine.Limits{Create: 45 * time.Minute, Boot: 15 * time.Minute, Delete: 30 * time.Minute}}
	if s.BaseURL == "" {
		info.Disabled = "MAAS_API_BASE_URL is not set"
		return activities.Source{Info: info, Provider: disabled{}}, nil
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.Erase == "" {
		s.Erase = EraseQuick
	}
	if s.Erase == EraseFull || s.Erase == EraseSecure {
		info.Limits.Delete = 24 * time.Hour
	}
	if s.PollPower == 0 {
		s.PollPower = time.Second
	}
	if s.KeepToken == 0 {
		s.KeepToken = time.Minute
	}
	c, err := s.open()
	if err != nil {
		return activities.Source{}, err
	}
	info.Catalog = machine.Catalog{Regions: s.Zones, Images: s.Images, TakesSSHKeys: true}
	for _, t := range s.Types {
		info.Types = append(info.Types, t.Type)
	}
	return activities.Source{Info: info, Provider: &Provider{&account{settings: s, client: c}}}, nil
}

// open checks the settings and returns the client. No error contains the token.
func (s Settings) open() (*client, error) {
	base, err := url.Parse(s.BaseURL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, faulty("MAAS_API_BASE_URL must be an http or https URL without user, query and fragment, for example https://maas.example.com:5443/MAAS")
	}
	token := strings.TrimSpace(s.Token)
	if s.ReadToken == nil && !ValidToken(token) {
		return nil, faulty("MAAS_API_TOKEN must have the form consumer:token:secret, or GPUAAS_MAAS_TOKEN_VAULT must be true")
	}
	if s.Timeout < minTimeout || s.Timeout > maxTimeout {
		return nil, faulty("MAAS_API_TIMEOUT_MS must be from %d to %d", minTimeout.Milliseconds(), maxTimeout.Milliseconds())
	}
	if !slices.Contains([]Erase{EraseNone, EraseQuick, EraseSecure, EraseFull}, s.Erase) {
		return nil, faulty("the erase option of MAAS must be none, quick, secure or full")
	}
	if s.Installation == "" || strings.Contains(s.Installation, "/") || len(s.Installation) > 64 {
		return nil, faulty("the name of the installation must have 1 to 64 characters and no slash")
	}
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/api/2.0") + "/api/2.0/"
	return newClient(base, token, s), nil
}

// ValidToken reports whether an API key has the form consumer:token:secret.
func ValidToken(token string) bool {
	parts := strings.Split(token, ":")
	return len(parts) == 3 && !slices.Contains(parts, "") && strings.TrimSpace(token) == token
}

func faulty(format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...)
}
