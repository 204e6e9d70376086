package activities_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// leftovers is a database in which every listed machine is a leftover that is due.
type leftovers struct {
	listed map[string][]machine.Machine // by provider
	// owned are the instances that own their machine again when its deletion begins.
	owned []string
	// external replaces the IDs of the provider: the ledger has others.
	external string
	deleted  []string
	err      error
}

func (l *leftovers) Record(_ context.Context, provider string, listed []machine.Machine) (map[machine.SurplusClass]int, error) {
	l.listed[provider] = listed
	return map[machine.SurplusClass]int{machine.ClassLeftover: len(listed)}, l.err
}

func (l *leftovers) Due(_ context.Context, providers []string, limit int) (due []machine.Surplus, err error) {
	for _, p := range providers {
		for _, m := range l.listed[p] {
			due = append(due, machine.Surplus{Provider: p, Machine: m, Class: machine.ClassLeftover})
		}
	}
	return due[:min(limit, len(due))], nil
}

func (l *leftovers) BeginDeletion(_ context.Context, m machine.Surplus) (machine.Ref, bool, error) {
	m.ExternalID = cmp.Or(l.external, m.ExternalID)
	return m.Ref, !slices.Contains(l.owned, m.InstanceID), nil
}

func (l *leftovers) Deleted(_ context.Context, m machine.Surplus) error {
	l.deleted = append(l.deleted, m.InstanceID)
	return nil
}

// swept is a sweep of providers in memory.
type swept struct {
	activities.Sweep
	t         *testing.T
	database  *leftovers
	providers map[string]*recorder.Provider
}

// sweepOf returns a sweep of enabled providers that create machines.
func sweepOf(t *testing.T, names ...string) *swept {
	t.Helper()
	s := &swept{t: t, database: &leftovers{listed: map[string][]machine.Machine{}}, providers: map[string]*recorder.Provider{}}
	s.Sweep = activities.Sweep{Surplus: s.database, Providers: map[string]activities.Source{}}
	for _, name := range names {
		s.providers[name] = recorder.New()
		s.Providers[name] = activities.Source{Info: machine.Info{Name: name, Creates: true}, Provider: s.providers[name]}
	}
	return s
}

// add adds a running machine.
func (s *swept) add(provider, instanceID string) {
	site := s.providers[provider].Site
	site.Advance(site.Add(recorder.Record{Owner: instanceID, Host: "gpu-17"}).ID)
}

// round runs the activity once.
func (s *swept) round() (summary activities.SweepSummary, err error) {
	s.t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(&s.Sweep)
	v, err := env.ExecuteActivity(s.SweepMachines)
	if err == nil {
		require.NoError(s.t, v.Get(&summary))
	}
	return summary, err
}

// done runs a round that must succeed.
func (s *swept) done() activities.SweepSummary {
	s.t.Helper()
	summary, err := s.round()
	require.NoError(s.t, err)
	return summary
}

// failed runs a round that must fail without a retry.
func (s *swept) failed() *schema.Error {
	s.t.Helper()
	_, err := s.round()
	var app *temporal.ApplicationError
	require.ErrorAs(s.t, err, &app)
	require.True(s.t, app.NonRetryable())
	return activities.Typed(err)
}

// calls returns the methods of a provider that were called.
func (s *swept) calls(provider string) (methods []string) {
	for _, c := range s.providers[provider].Calls() {
		methods = append(methods, c.Method)
	}
	return methods
}

// TestSweepReports: a sweep that only reports calls List and nothing else, and only of enabled
// providers that create machines. It bounds what it stores of the list.
func TestSweepReports(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme", "adopts", "off")
	s.Providers["adopts"] = activities.Source{Info: machine.Info{Name: "adopts"}, Provider: s.providers["adopts"]}
	s.Providers["off"] = activities.Source{Info: machine.Info{Name: "off", Creates: true, Disabled: "no key"}, Provider: s.providers["off"]}
	s.providers["acme"].Site.Add(recorder.Record{Owner: "i-1\x1b[31m" + strings.Repeat("x", 99), Host: "gpu\n17", Detail: "ERR\x00"})
	got := s.done()
	require.Equal(t, activities.SweepSummary{Machines: 1, Found: map[machine.SurplusClass]int{machine.ClassLeftover: 1}}, got)
	require.Equal(t, []string{"list"}, s.calls("acme"))
	require.Empty(t, s.calls("adopts"))
	require.Empty(t, s.calls("off"))
	m := s.database.listed["acme"][0]
	require.Len(t, []rune(m.InstanceID), 64)
	require.Equal(t, "gpu 17", m.Host)
	require.NotContains(t, m.InstanceID+m.Detail, "\x1b")
	require.NotContains(t, m.Detail, "\x00")
}

// TestSweepDeletes: a machine is deleted when its provider has none with its owner tag. Until then
// each round asks for it.
func TestSweepDeletes(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes = true
	s.add("acme", "i-1")
	require.Equal(t, 1, s.done().Deleting)
	require.Empty(t, s.database.deleted)
	s.add("acme", "i-1") // the deletion of the first one has ended meanwhile
	s.providers["acme"].Gate = func(_ context.Context, method string, _ bool, do func()) error {
		if do(); method == "delete" {
			s.providers["acme"].Site.Advance("m-2")
		}
		return nil
	}
	require.Equal(t, []string{"i-1"}, s.done().Deleted)
	require.Equal(t, []string{"i-1"}, s.database.deleted)
	require.Empty(t, s.providers["acme"].Site.All())
}

// TestSweepKeepsOwned: a machine that an instance owns when its deletion begins stays.
func TestSweepKeepsOwned(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes, s.database.owned = true, []string{"i-1"}
	s.add("acme", "i-1")
	require.Empty(t, s.done().Deleted)
	require.Equal(t, []string{"list"}, s.calls("acme"))
}

// TestSweepIsBounded: a round begins at most ten deletions.
func TestSweepIsBounded(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes = true
	for range 12 {
		s.add("acme", schema.NewID())
	}
	require.Equal(t, 10, s.done().Deleting)
}

// TestSweepContinues: a provider that does not respond does not stop the others, and nothing of it
// is compared or deleted. The round fails at its end.
func TestSweepContinues(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme", "bad", "core")
	s.Deletes = true
	for name := range s.providers {
		s.add(name, "i-"+name)
	}
	s.providers["bad"].Gate = func(context.Context, string, bool, func()) error { return errors.New("secret of the library") }
	failure := s.failed()
	require.Equal(t, machine.ReasonUnavailable, failure.Reason)
	require.Contains(t, failure.Message, "listing the machines of provider bad: ")
	require.NotContains(t, failure.Message, "secret")
	require.NotContains(t, s.database.listed, "bad")
	require.Equal(t, []string{"list"}, s.calls("bad"))
	for _, name := range []string{"acme", "core"} {
		require.Equal(t, []string{"list", "delete", "describe"}, s.calls(name))
	}
}

// TestSweepVerifies: after a deletion whose answer was lost, the provider is asked for the machine
// once, and the deletion is not repeated in the round.
func TestSweepVerifies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		effect bool
		reason string
	}{"with effect": {true, ""}, "without effect": {false, machine.ReasonAmbiguous}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sweepOf(t, "acme")
			s.Deletes = true
			s.add("acme", "i-1")
			s.providers["acme"].Gate = func(_ context.Context, method string, _ bool, do func()) error {
				if method != "delete" {
					do()
					return nil
				}
				if c.effect {
					s.providers["acme"].Site.Remove("m-1")
				}
				return errors.New("the connection broke")
			}
			if c.reason == "" {
				require.Equal(t, []string{"i-1"}, s.done().Deleted)
			} else {
				require.Equal(t, c.reason, s.failed().Reason)
				require.Empty(t, s.database.deleted)
			}
			require.Equal(t, []string{"list", "delete", "describe"}, s.calls("acme"))
		})
	}
}

// TestSweepRefused: a deletion that certainly had no effect ends with its error.
func TestSweepRefused(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes = true
	s.add("acme", "i-1")
	s.providers["acme"].Gate = func(_ context.Context, method string, _ bool, do func()) error {
		if method == "delete" {
			return machine.Errorf(machine.ReasonAuth, "the key has expired")
		}
		do()
		return nil
	}
	require.Equal(t, "deleting the machine of instance i-1 at provider acme: the key has expired", s.failed().Message)
	require.Equal(t, []string{"list", "delete"}, s.calls("acme"))
}

// TestSweepNamesNoOperation: the next step of a round that failed is one that an operator can take. The
// sweep is no operation, so there is none to retry, cancel or provision again.
func TestSweepNamesNoOperation(t *testing.T) {
	t.Parallel()
	for _, p := range machine.Problems() {
		s := sweepOf(t, "acme")
		s.providers["acme"].Gate = func(context.Context, string, bool, func()) error { return machine.Errorf(p.Reason, "no luck") }
		failure := s.failed()
		require.Equal(t, p.Reason, failure.Reason)
		require.Regexp(t, "the next run of sweep-machines tries again$", failure.Next)
		require.NotRegexp(t, "(?i)retry|cancel|provision", failure.Next, p.Reason)
		if p.Reason == machine.ReasonAuth {
			require.Equal(t, "Correct the provider's credentials; the next run of sweep-machines tries again", failure.Next)
		}
	}
}

// TestSweepFindsByOwnerTag: a machine whose ID at the provider is not the one in the ledger is not
// deleted before the provider has no machine with the owner tag.
func TestSweepFindsByOwnerTag(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes, s.database.external = true, "m-0"
	s.add("acme", "i-1")
	require.Equal(t, 1, s.done().Deleting)
	require.Empty(t, s.database.deleted)
}

// TestSweepWithoutDatabase: the attempt ends and is retried, and no machine is deleted.
func TestSweepWithoutDatabase(t *testing.T) {
	t.Parallel()
	s := sweepOf(t, "acme")
	s.Deletes, s.database.err = true, schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
	s.add("acme", "i-1")
	_, err := s.round()
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.False(t, app.NonRetryable())
	require.Equal(t, []string{"list"}, s.calls("acme"))
}
