package recorder_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
	"github.com/gpuaas/gpuaas/test/testkit/providertest"
)

// mutantVariable names the defect of the child process that runs TestMutant.
const mutantVariable = "GPUAAS_TEST_MUTANT"

// A mutant is a provider with one defect: the calls that are set replace the recorder's.
type mutant struct {
	*recorder.Provider
	create   func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error)
	describe func(ctx context.Context, r machine.Ref) (machine.Machine, error)
	power    func(ctx context.Context, r machine.Ref, p machine.Power) error
	console  func(ctx context.Context, r machine.Ref) ([]byte, error)
	remove   func(ctx context.Context, r machine.Ref) error
	list     func(ctx context.Context) ([]machine.Machine, error)
}

func (m mutant) Create(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
	if m.create != nil {
		return m.create(ctx, s, boot)
	}
	return m.Provider.Create(ctx, s, boot)
}

func (m mutant) Describe(ctx context.Context, r machine.Ref) (machine.Machine, error) {
	if m.describe != nil {
		return m.describe(ctx, r)
	}
	return m.Provider.Describe(ctx, r)
}

func (m mutant) Power(ctx context.Context, r machine.Ref, p machine.Power) error {
	if m.power != nil {
		return m.power(ctx, r, p)
	}
	return m.Provider.Power(ctx, r, p)
}

func (m mutant) Console(ctx context.Context, r machine.Ref) ([]byte, error) {
	if m.console != nil {
		return m.console(ctx, r)
	}
	return m.Provider.Console(ctx, r)
}

func (m mutant) Delete(ctx context.Context, r machine.Ref) error {
	if m.remove != nil {
		return m.remove(ctx, r)
	}
	return m.Provider.Delete(ctx, r)
}

func (m mutant) List(ctx context.Context) ([]machine.Machine, error) {
	if m.list != nil {
		return m.list(ctx)
	}
	return m.Provider.List(ctx)
}

// A defect is one that the suite must find, with a case that fails.
type defect struct {
	name, finds string
	mutate      func(p *recorder.Provider) mutant
}

func defects() []defect {
	return append(createDefects(), callDefects()...)
}

func createDefects() []defect {
	return []defect{
		{"a second create makes a second machine", "create/twice with one ID is one machine", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				_, exists := p.Site.Owned(s.InstanceID)
				m, err := p.Create(ctx, s, boot)
				if exists {
					m.ExternalID = p.Site.Add(recorder.Record{Host: s.Host}).ID
				}
				return m, err
			}}
		}},
		{"create has a race", "create/two adapters at once are one machine", func(p *recorder.Provider) mutant {
			return mutant{create: func(_ context.Context, s machine.Spec, _ activities.BootData) (machine.Machine, error) {
				r, exists := p.Site.Owned(s.InstanceID)
				if !exists {
					<-time.After(20 * time.Millisecond)
					r = p.Site.Add(recorder.Record{Host: s.Host})
					p.Site.Change(r.ID, func(r *recorder.Record) { r.Owner = s.InstanceID })
				}
				return machine.Machine{Ref: machine.Ref{InstanceID: s.InstanceID, ExternalID: r.ID}, Phase: machine.Creating}, nil
			}}
		}},
		{"create issues boot data for a machine that exists", "boot/is not issued for a machine that exists", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				if _, err := boot(ctx); err != nil {
					return machine.Machine{}, err
				}
				return p.Create(ctx, s, func(context.Context) (activities.Boot, error) { return activities.Boot{}, nil })
			}}
		}},
		{"create accepts any spec", "spec/host with a command is rejected", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				s.Host, s.Region, s.Type, s.Image = "host", "local", "small", "default"
				return p.Create(ctx, s, boot)
			}}
		}},
		{"create reports a lost reply as unavailable", "create/lost_reply, then describe finds the machine", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				m, err := p.Create(ctx, s, boot)
				return m, turned(err, machine.ReasonAmbiguous, machine.ReasonUnavailable)
			}}
		}},
		{"create reports a quota as unavailable", "create/quota has no effect", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				m, err := p.Create(ctx, s, boot)
				return m, turned(err, machine.ReasonQuota, machine.ReasonUnavailable)
			}}
		}},
		{"an error has a credential", "secrets/are not in the errors of create", func(p *recorder.Provider) mutant {
			return mutant{create: func(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
				m, err := p.Create(ctx, s, boot)
				if err != nil {
					err = machine.Wrap(machine.ReasonAmbiguous, errors.New("GET /?key="+providertest.Secret), "the request failed")
				}
				return m, err
			}}
		}},
	}
}

func callDefects() []defect {
	return []defect{
		{"describe reports an unavailable provider as missing", "describe/unavailable is an error and not an empty answer", func(p *recorder.Provider) mutant {
			return mutant{describe: func(ctx context.Context, r machine.Ref) (machine.Machine, error) {
				m, err := p.Describe(ctx, r)
				return m, turned(err, machine.ReasonUnavailable, machine.ReasonMissing)
			}}
		}},
		{"describe needs an external ID", "describe/by owner tag only", func(p *recorder.Provider) mutant {
			return mutant{describe: func(ctx context.Context, r machine.Ref) (machine.Machine, error) {
				if r.ExternalID == "" {
					return machine.Machine{}, machine.Errorf(machine.ReasonMissing, "there is no such machine")
				}
				return p.Describe(ctx, r)
			}}
		}},
		{"describe returns details as they are", "describe/a hostile detail is one short line", func(p *recorder.Provider) mutant {
			return mutant{describe: func(ctx context.Context, r machine.Ref) (machine.Machine, error) {
				m, err := p.Describe(ctx, r)
				found, _ := p.Site.Owned(r.InstanceID)
				m.Detail = found.Detail
				return m, err
			}}
		}},
		{"power off changes nothing", "power/off stops the machine", func(p *recorder.Provider) mutant {
			return mutant{power: func(ctx context.Context, r machine.Ref, _ machine.Power) error {
				return p.Power(ctx, r, machine.PowerOn)
			}}
		}},
		{"power of a missing machine succeeds", "power/of a missing machine is missing", func(p *recorder.Provider) mutant {
			return mutant{power: func(ctx context.Context, r machine.Ref, c machine.Power) error {
				return turned(p.Power(ctx, r, c), machine.ReasonMissing, "")
			}}
		}},
		{"console is not bounded", "console/returns the end of a long console", func(p *recorder.Provider) mutant {
			return mutant{console: func(_ context.Context, r machine.Ref) ([]byte, error) {
				found, _ := p.Site.Owned(r.InstanceID)
				return found.Console, nil
			}}
		}},
		{"delete uses the external ID only", "delete/with a foreign external ID keeps the foreign machine", func(p *recorder.Provider) mutant {
			return mutant{remove: func(_ context.Context, r machine.Ref) error {
				p.Site.Remove(r.ExternalID)
				p.Site.RemoveDisk(r.InstanceID)
				return nil
			}}
		}},
		{"delete keeps the disk", "delete/leaves nothing", func(p *recorder.Provider) mutant {
			return mutant{remove: func(_ context.Context, r machine.Ref) error {
				found, _ := p.Site.Owned(r.InstanceID)
				p.Site.Remove(found.ID)
				return nil
			}}
		}},
		{"delete of a missing machine fails", "delete/of a machine that never existed succeeds", func(p *recorder.Provider) mutant {
			return mutant{remove: func(ctx context.Context, r machine.Ref) error {
				if _, ok := p.Site.Owned(r.InstanceID); !ok {
					return machine.Errorf(machine.ReasonMissing, "there is no such machine")
				}
				return p.Delete(ctx, r)
			}}
		}},
		{"delete ignores its context", "context/a canceled delete is an error without effect", func(p *recorder.Provider) mutant {
			return mutant{remove: func(ctx context.Context, r machine.Ref) error { return p.Delete(context.WithoutCancel(ctx), r) }}
		}},
		{"list has foreign machines", "list/leaves out foreign machines", func(p *recorder.Provider) mutant {
			return mutant{list: func(context.Context) (all []machine.Machine, err error) {
				for _, r := range p.Site.All() {
					all = append(all, machine.Machine{Ref: machine.Ref{InstanceID: r.Owner, ExternalID: r.ID}, Phase: r.Phase})
				}
				return all, nil
			}}
		}},
		{"list leaves out machines that are being created", "list/has machines that are being created", func(p *recorder.Provider) mutant {
			return mutant{list: func(ctx context.Context) (running []machine.Machine, err error) {
				all, err := p.List(ctx)
				for _, m := range all {
					if m.Phase == machine.Running {
						running = append(running, m)
					}
				}
				return running, err
			}}
		}},
		{"list of an unavailable provider is empty", "list/unavailable is an error and not an empty answer", func(p *recorder.Provider) mutant {
			return mutant{list: func(ctx context.Context) ([]machine.Machine, error) {
				all, err := p.List(ctx)
				return all, turned(err, machine.ReasonUnavailable, "")
			}}
		}},
	}
}

// turned returns err with another reason, or nil for none, if it has the reason from.
func turned(err error, from, to string) error {
	switch {
	case !machine.Is(err, from):
		return err
	case to == "":
		return nil
	}
	return machine.Errorf(to, "the call failed")
}

// TestSuiteFindsDefects runs, for each defect, the case that must find it, in a child process
// because the case fails.
func TestSuiteFindsDefects(t *testing.T) {
	t.Parallel()
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			pattern := "^TestMutant$/^" + strings.ReplaceAll(strings.ReplaceAll(d.finds, " ", "_"), "/", "$/^") + "$"
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=1m", "-test.run="+pattern)
			child.Env = append(os.Environ(), mutantVariable+"="+d.name)
			out, err := child.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), "--- FAIL: TestMutant/"+strings.ReplaceAll(d.finds, " ", "_"))
		})
	}
}

// TestMutant is the child process of TestSuiteFindsDefects, and nothing in other processes.
func TestMutant(t *testing.T) {
	t.Parallel()
	for _, d := range defects() {
		if d.name != os.Getenv(mutantVariable) {
			continue
		}
		provider.Run(t, func(t *testing.T) provider.Target {
			t.Helper()
			c := target(t)
			for _, p := range []*activities.MachineProvider{&c.Provider, &c.Second} {
				original, ok := (*p).(*recorder.Provider)
				require.True(t, ok)
				m := d.mutate(original)
				m.Provider = original
				*p = m
			}
			return c
		})
		return
	}
}
