package maastest_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/boot"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// tokens accepts every reference.
type tokens struct{}

func (tokens) TokenExpiry(context.Context) (time.Time, error) { return time.Now().Add(time.Hour), nil }

func (tokens) IssueBoot(context.Context, trust.MintedToken, activities.Fence, time.Duration) error {
	return nil
}

// newNodeAPI returns a node API that responds to user data with a script, and what new machines of
// it get.
func newNodeAPI(t *testing.T, script string) activities.BootData {
	t.Helper()
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body trust.BootstrapRequest
		if r.URL.Path == "/internal/v1/bootstrap/script" && json.NewDecoder(r.Body).Decode(&body) == nil {
			_, _ = w.Write([]byte(strings.ReplaceAll(script, "REFERENCE", body.Reference)))
		}
	}))
	t.Cleanup(api.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}))
	issuer := boot.Issuer{Tokens: tokens{}, NodeURL: api.URL, CA: func(context.Context) (string, error) { return ca, nil }}
	return func(ctx context.Context) (activities.Boot, error) {
		return issuer.NewBoot(ctx, activities.Fence{NodeID: "n-1"})
	}
}

// newGuests starts a double with one machine whose QEMU is a script.
func newGuests(t *testing.T, qemu string) (*maastest.Server, *maastest.Guests, activities.MachineProvider) {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte("#!/bin/sh\n"+qemu), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	guests := &maastest.Guests{Kernel: "/kernel", Initramfs: "/initramfs", Dir: t.TempDir(), Hosts: map[string]string{"api": "10.0.2.2"}}
	server := maastest.New(maastest.Options{Guests: guests, Delays: maastest.Delays{Power: time.Millisecond, Deploy: 5 * time.Millisecond}},
		maastest.Machine{SystemID: "abc", Hostname: "rack-1", CPUs: 2, MemoryMiB: 512})
	t.Cleanup(server.Close)
	source, err := maas.New(maas.Settings{BaseURL: server.BaseURL(), Token: server.Key, Installation: "test", Erase: maas.EraseNone, PollPower: time.Millisecond})
	require.NoError(t, err)
	return server, guests, source.Provider
}

const running = `
echo "started with $*"
case "$*" in *fw_cfg*) cat /dev/fd/3; echo ;; esac
exec sleep 1000
`

// TestGuests: a deployed machine boots with what its user data obtained, again without it, and
// ends when it loses power.
func TestGuests(t *testing.T) {
	server, guests, p := newGuests(t, running)
	var issued activities.Boot
	newBoot := newNodeAPI(t, "#!/bin/sh\necho REFERENCE; touch '"+filepath.Join(t.TempDir(), "never")+"'\n")
	s := machine.Spec{InstanceID: schema.NewID(), NodeID: "n-1", Host: "gpu-1"}
	ref := machine.Ref{InstanceID: s.InstanceID}
	console := func() string {
		text, _ := os.ReadFile(guests.Console("abc")) // none before the first start
		return string(text)
	}
	m, err := p.Create(t.Context(), s, func(ctx context.Context) (_ activities.Boot, err error) {
		issued, err = newBoot(ctx)
		return issued, err
	})
	require.NoError(t, err)
	require.Equal(t, "abc", m.ExternalID)
	harness.Eventually(t, "the machine starts", func() bool { return strings.Contains(console(), "}\n") })
	arguments, document, _ := strings.Cut(console(), "\n")
	require.Contains(t, arguments, "-smp 2 -m 512 -kernel /kernel -initrd /initramfs ")
	require.NotContains(t, arguments, issued.Reference)
	var d machine.BootDocument
	require.NoError(t, json.Unmarshal([]byte(document), &d))
	require.Equal(t, machine.BootDocument{BaseURL: issued.BaseURL, CABundlePEM: issued.CABundlePEM, Reference: issued.Reference, Host: "rack-1", Hosts: guests.Hosts}, d)

	require.NoError(t, p.Power(t.Context(), ref, machine.PowerOff))
	harness.Eventually(t, "the machine ends", func() bool { return len(guests.Running()) == 0 })
	require.NoError(t, p.Power(t.Context(), ref, machine.PowerOn))
	harness.Eventually(t, "the machine starts again", func() bool { return strings.Count(console(), "started with") == 2 })
	require.Equal(t, 1, strings.Count(console(), "fw_cfg"), "the user data runs once")
	require.Equal(t, []string{"abc"}, guests.Running())

	require.NoError(t, p.Delete(t.Context(), ref))
	harness.Eventually(t, "the machine is released", func() bool { return server.Status("abc") == "Ready" && len(guests.Running()) == 0 })
	require.Empty(t, server.Leftovers())
}

// TestGuestEnds: MAAS sees that a machine switched itself off, and a machine whose user data fails
// boots without an identity.
func TestGuestEnds(t *testing.T) {
	for name, c := range map[string]struct{ script, says string }{
		"the response is no script":       {"REFERENCE", "no bootstrap script"},
		"a script with another reference": {"#!/bin/sh\n", "no bootstrap script"},
	} {
		t.Run(name, func(t *testing.T) {
			server, guests, p := newGuests(t, "echo \"started with $*\"\n")
			_, err := p.Create(t.Context(), machine.Spec{InstanceID: schema.NewID(), NodeID: "n-1", Host: "gpu-1"}, newNodeAPI(t, c.script))
			require.NoError(t, err)
			harness.Eventually(t, "the machine ends", func() bool { return server.Status("abc") == "Deployed" && server.Power("abc") == "off" })
			text, err := os.ReadFile(guests.Console("abc"))
			require.NoError(t, err)
			require.Contains(t, string(text), c.says)
			require.Contains(t, string(text), "started with")
			require.NotContains(t, string(text), "fw_cfg")
		})
	}
}
