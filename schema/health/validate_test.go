package health_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
)

// report is a valid report with one fault of a checker that this version does not have.
func report() health.Report {
	return health.Report{At: start(), BootID: "b1", Conditions: []health.Condition{{
		Checker: "gpu_future", Component: "GPU-a", Status: health.Unhealthy, Reason: "NewReason_1", Code: 79,
		Repair: health.RepairReboot, Detail: "GPU has fallen off the bus", Since: start(), Samples: 1,
	}}}
}

func TestValidateAcceptsNewCheckers(t *testing.T) {
	t.Parallel()
	require.NoError(t, report().Validate())
	require.NoError(t, health.Report{At: start()}.Validate())
}

func TestValidateRejects(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*health.Report){
		"no time": func(r *health.Report) {
			r.At = report().At.AddDate(-3000, 0, 0).AddDate(3000, 0, 0)
			r.At = (health.Report{}).At
		},
		"boot ID":              func(r *health.Report) { r.BootID = strings.Repeat("b", 65) },
		"boot ID with control": func(r *health.Report) { r.BootID = "b\x00" },
		"too many":             func(r *health.Report) { r.Conditions = make([]health.Condition, health.MaxConditions+1) },
		"twice":                func(r *health.Report) { r.Conditions = append(r.Conditions, r.Conditions[0]) },
		"no checker":           func(r *health.Report) { r.Conditions[0].Checker = "" },
		"the silence":          func(r *health.Report) { r.Conditions[0].Checker = health.CheckerHeartbeat },
		"checker in capitals":  func(r *health.Report) { r.Conditions[0].Checker = "GPU" },
		"checker of 33":        func(r *health.Report) { r.Conditions[0].Checker = strings.Repeat("c", 33) },
		"component":            func(r *health.Report) { r.Conditions[0].Component = "a\nb" },
		"long component":       func(r *health.Report) { r.Conditions[0].Component = strings.Repeat("c", 65) },
		"status":               func(r *health.Report) { r.Conditions[0].Status = "sick" },
		"no reason":            func(r *health.Report) { r.Conditions[0].Reason = "" },
		"reason with spaces":   func(r *health.Report) { r.Conditions[0].Reason = "a b" },
		"reason of 65":         func(r *health.Report) { r.Conditions[0].Reason = strings.Repeat("r", 65) },
		"repair":               func(r *health.Report) { r.Conditions[0].Repair = "burn" },
		"no repair":            func(r *health.Report) { r.Conditions[0].Repair = "" },
		"repair while healthy": func(r *health.Report) { r.Conditions[0].Status = health.Healthy },
		"detail with escape":   func(r *health.Report) { r.Conditions[0].Detail = "\x1b[2J" },
		"long detail":          func(r *health.Report) { r.Conditions[0].Detail = strings.Repeat("d", 257) },
		"no since":             func(r *health.Report) { r.Conditions[0].Since = time.Time{} },
		"negative code":        func(r *health.Report) { r.Conditions[0].Code = -1 },
		"huge samples":         func(r *health.Report) { r.Conditions[0].Samples = 1 << 31 },
		"negative unknown":     func(r *health.Report) { r.Conditions[0].UnknownSeconds = -1 },
	} {
		r := report()
		change(&r)
		err := r.Validate()
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: health.ReasonBadHealth}, name)
		require.NotContains(t, err.Error(), "\x1b", name)
	}
}

// FuzzReport checks that no accepted report has a text that could do harm in a log or a label.
func FuzzReport(f *testing.F) {
	seed, err := json.Marshal(report())
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte(`{"at":"2026-11-28T08:00:00Z","conditions":[{"checker":"a","status":"unknown","reason":"B","since":"2026-11-28T08:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r health.Report
		if json.Unmarshal(data, &r) != nil || r.Validate() != nil {
			return
		}
		for _, c := range r.Conditions {
			for _, s := range []string{c.Checker, c.Component, c.Reason, c.Detail, string(c.Repair), string(c.Status)} {
				for _, b := range []byte(s) {
					if b < ' ' || b > '~' {
						t.Fatalf("%q was accepted", s)
					}
				}
			}
		}
		next := health.NewTracker(r).Observe(r.At.Add(1), r.BootID, nil)
		if len(next.Conditions) != 0 {
			t.Fatal("a report without findings has conditions")
		}
	})
}
