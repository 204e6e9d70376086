package recovery_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestDefault checks that the default policy is valid, safe, and complete.
func TestDefault(t *testing.T) {
	t.Parallel()
	p := recovery.Default()
	require.NoError(t, p.Validate())
	assert.Equal(t, recovery.ModeMonitor, p.Mode)
	assert.Empty(t, p.GPUReplaceClasses)
	empty, err := recovery.DecodePolicy([]byte(`{}`))
	require.NoError(t, err)
	assert.Equal(t, p, empty)
	assert.Equal(t, p.Digest(), empty.Digest())
}

// TestDefaultThresholds compares the thresholds with those of the checkers.
func TestDefaultThresholds(t *testing.T) {
	t.Parallel()
	checkers, err := host.Checkers()
	require.NoError(t, err)
	all := health.Thresholds(checkers)
	maps.Copy(all, health.Thresholds(health.NewDefaultCheckers()))
	p := recovery.Default()
	for name := range p.Thresholds {
		assert.Contains(t, all, name, "a checker of the policy does not exist")
	}
	for name, want := range all {
		got, ok := p.Thresholds[name]
		if !ok {
			got = p.Threshold
		}
		assert.Equal(t, want, time.Duration(got), name)
	}
}

// TestDecodePolicy shows what a document replaces.
func TestDecodePolicy(t *testing.T) {
	t.Parallel()
	p, err := recovery.DecodePolicy([]byte(`{
		"mode": "armed",
		"cooldown": "45m",
		"thresholds": {"node_ready": "3m"},
		"gpu_replace_classes": ["spot"],
		"repairs": [{"match": {"checkers": ["gpu_xid"], "codes": [79], "gpu": true}, "repair": "replace"}],
		"windows": [{"weekly": {"days": ["sat", "sun"], "at": "22:00", "for": "6h"}, "reason": "power tests"}],
		"approvals": ["replace"]
	}`))
	require.NoError(t, err)
	assert.Equal(t, recovery.ModeArmed, p.Mode)
	assert.Equal(t, recovery.Duration(45*time.Minute), p.Cooldown)
	assert.Equal(t, map[string]recovery.Duration{"node_ready": recovery.Duration(3 * time.Minute)}, p.Thresholds, "a field is replaced as a whole")
	assert.Equal(t, recovery.Default().Budgets, p.Budgets, "a field that is missing has its default")
	require.NotEqual(t, recovery.Default().Digest(), p.Digest())

	raw, err := json.Marshal(p)
	require.NoError(t, err)
	again, err := recovery.DecodePolicy(raw)
	require.NoError(t, err)
	assert.Equal(t, p, again)

	none, err := recovery.DecodePolicy([]byte(`{"ladders": [], "replace_classes": null, "thresholds": {}}`))
	require.NoError(t, err)
	raw, err = json.Marshal(none)
	require.NoError(t, err)
	stored, err := recovery.DecodePolicy(raw)
	require.NoError(t, err)
	assert.Equal(t, none, stored)
	assert.Empty(t, stored.Ladders, "a list that is empty does not become the default")
	assert.Empty(t, stored.ReplaceClasses)
	assert.Empty(t, stored.Thresholds)
	assert.Equal(t, none.Digest(), stored.Digest())
	assert.Equal(t, p.Digest(), again.Digest())
}

// TestPolicyErrors checks that each error names the field and the fix.
func TestPolicyErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ document, want string }{
		{`{"mode": "on"}`, `mode is "on": set it to "monitor" or "armed"`},
		{`{"ladders": [{"rungs": []}]}`, "ladders[0].rungs is empty: list at least one of reset_gpu, reboot, replace, quarantine"},
		{`{"ladders": [{"rungs": ["pray"]}]}`, `ladders[0].rungs[0] is "pray": use one of reset_gpu`},
		{`{"ladders": [{"rungs": ["replace", "reboot"]}]}`, `ladders[0].rungs[1] is "reboot" after "replace": list each rung once, in the order`},
		{`{"ladders": [{"rungs": ["reboot", "reboot"]}]}`, `ladders[0].rungs[1] is "reboot" after "reboot"`},
		{`{"ladders": [{"match": {"skus": [""]}, "rungs": ["reboot"]}]}`, "ladders[0].match.skus[0] is empty: remove it"},
		{`{"ladders": [{"match": {"repairs": ["x"]}, "rungs": ["reboot"]}]}`, `ladders[0].match.repairs[0] is "x": use one of none, observe`},
		{`{"repairs": [{"match": {"codes": [79]}, "repair": "kick"}]}`, `repairs[0].match.checkers is empty: name the checkers, for example gpu_xid; repairs[0].repair is "kick": use one of none`},
		{`{"budgets": []}`, `budgets has none for the fleet: add {"scope": "fleet"`},
		{`{"budgets": null}`, `budgets has none for the fleet`},
		{`{"max_out": [{"scope": "zone", "count": -1, "percent": 1}]}`, `max_out[0].scope is "zone": use one of fleet, region, sku, rack; max_out[0].count is -1: set it to 0 to 1000000`},
		{`{"budgets": [{"scope": "fleet", "key": "x", "count": 1, "percent": 1}]}`, `budgets[0].key is "x": remove it, the fleet has no key`},
		{`{"budgets": [{"scope": "fleet", "count": -1, "percent": 120}]}`, "budgets[0].count is -1: set it to 0 to 1000000; budgets[0].percent is 120: set it to 0 to 100"},
		{`{"budgets": [{"scope": "zone", "count": 1, "percent": 1}]}`, `budgets[0].scope is "zone": use one of fleet, region, sku, rack`},
		{`{"budgets": [{"scope": "fleet", "count": 1, "percent": 1}, {"scope": "fleet", "count": 2, "percent": 1}]}`, "budgets[1] repeats the scope and the key of another budget: keep one"},
		{`{"breaker": {"nodes": 0, "percent": 10, "within": "10m", "half_open_after": "30m"}}`, "breaker.nodes is 0: set it to 1 to 1000000"},
		{`{"breaker": {"nodes": 9}}`, "breaker.percent is 0: set it to 1 to 100; breaker.within is 0s: set it to 1m to 24h"},
		{`{"breaker": null}`, "breaker.nodes is 0"},
		{`{"suspect": {"percent": 20, "within": "24h", "trusted": ["Xid"]}}`, `suspect.trusted[0] is "Xid": write checker/Reason`},
		{`{"rack": {"percent": 50, "nodes": 2}}`, "rack.nodes is 2: set it to 3 to 1000"},
		{`{"flapping": {"repairs": 0, "within": "168h"}}`, "flapping.repairs is 0: set it to 1 to 1000"},
		{`{"flapping": {"repairs": 5, "within": "721h"}}`, "flapping.within is 721h: set it to 1h to 720h"}, // no older attempts are read
		{`{"samples": 0}`, "samples is 0: set it to 1 to 1000"},
		{`{"threshold": "-5m"}`, "threshold is -5m: set it to 1m to 168h"},
		{`{"thresholds": {"gpu": "-1s"}}`, `thresholds["gpu"] is -1s: set it to 0s to 168h`},
		{`{"breaker": {"within": "10"}}`, `malformed policy: field "breaker": malformed body: "10" is not a duration: write for example "10m" or "168h"`},
		{`{"cooldown": 600}`, `malformed policy: field "cooldown" is a number: write a duration`},
		{`{"windows": [{"reason": "x"}]}`, "windows[0] needs weekly, or an end after its start"},
		{`{"windows": [{"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z", "reason": "x"}]}`, "windows[0] needs weekly, or an end after its start"},
		{`{"windows": [{"start": "2026-01-02T00:00:00Z", "end": "2026-01-03T00:00:00Z"}]}`, "windows[0].reason is empty: say what the window is for"},
		{`{"windows": [{"match": {"codes": [1]}, "start": "2026-01-02T00:00:00Z", "end": "2026-01-03T00:00:00Z", "reason": "x"}]}`, "windows[0].match selects faults"},
		{`{"windows": [{"weekly": {"days": ["monday"], "at": "24:00", "for": "25h"}, "reason": "x"}]}`,
			`windows[0].weekly.days[0] is "monday": use one of sun, mon`},
		{`{"windows": [{"weekly": {"days": ["mon"], "at": "9:00", "for": "1h"}, "reason": "x"}]}`, `windows[0].weekly.at is "9:00": write a time of day in UTC`},
		{`{"windows": [{"weekly": {"days": [], "at": "09:00", "for": "1h"}, "reason": "x"}]}`, "windows[0].weekly.days has 0 entries"},
		{`{"approvals": ["all"]}`, `approvals[0] is "all": use one of`},
		{`{"approvals": ["quarantine"]}`, `approvals[0] is "quarantine": use one of reset_gpu, reboot, replace`},
		{`{"disabled_checkers": ["a\nb"]}`, "disabled_checkers[0] is not one line"},
		{`{"modes": "armed"}`, `unknown field "modes"`},
		{`{"boot_grace": 10}`, `field "boot_grace" is a number: write a duration, for example "10m"`},
		{`{"samples": "x"}`, `field "samples" is a string: write a whole number`},
		{`{"samples": 1.5}`, `field "samples" is a number 1.5: write a whole number`},
		{`{"approvals": "reboot"}`, `field "approvals" is a string: write a list`},
		{`{"disabled_checkers": [1]}`, `field "disabled_checkers" is a number: write text`},
		{`{"breaker": []}`, `field "breaker" is an array: write an object`},
		{`{"breaker": {"within": true}}`, `field "breaker.within" is a bool: write a duration`},
		{`{"boot_grace": "10"}`, `field "boot_grace"`},
		{`{"windows": [{"start": 1}]}`, `field "windows" has a time that is none: write for example "2026-01-02T15:04:05Z"`},
		{`{"windows": [{"start": "tomorrow"}]}`, `field "windows" has a time that is none: write for example`},
		{`{"mode": "armed", "mode": "monitor"}`, `"mode" appears twice`},
		{`{"Mode": "armed"}`, "appears twice"},
		{`{"breaker": {"nodes": 9, "nodes": 10}}`, `"nodes" appears twice`},
		{`{} {}`, "data after the value"},
		{`[]`, "malformed"},
		{`null`, "the document is null: write an object"},
		{``, "malformed JSON"},
		{`{"windows": [` + strings.Repeat(`{},`, 200) + `{}]}`, "windows has 201 entries: at most 200 are allowed"},
		{`{"disabled_checkers": ["` + strings.Repeat("x", recovery.MaxPolicy) + `"]}`, "more than 65536 bytes"},
	} {
		_, err := recovery.DecodePolicy([]byte(c.document))
		require.ErrorContains(t, err, c.want, c.document)
		assert.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), c.document)
		assert.Less(t, len(err.Error()), 8000, "a bounded message")
	}
}

// TestWeekly checks the hours of weekly windows, also over midnight.
func TestWeekly(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Windows = []recovery.Window{{
		Match:  recovery.Match{Racks: []string{"r00"}},
		Weekly: &recovery.Weekly{Days: []string{"sun"}, At: "22:00", For: recovery.Duration(6 * hour)}, Reason: "x",
	}}
	sunday := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	inside := func(at time.Time, i int) bool {
		return recovery.Decide(p, fleet(at, 100, failing(i, at.Add(-hour)))).Decisions[0].Brake == recovery.BrakeWindow
	}
	for after, want := range map[time.Duration]bool{
		21*hour + 59*time.Minute: false, 22 * hour: true, 24 * hour: true, 27*hour + 59*time.Minute: true, 28 * hour: false,
		46 * hour: false, 7*24*hour + 22*hour: true,
	} {
		assert.Equal(t, want, inside(sunday.Add(after), 1), "%s after the begin of Sunday", after)
		assert.False(t, inside(sunday.Add(after), 50), "another rack")
	}
	assert.True(t, inside(sunday.Add(22*hour).In(time.FixedZone("", 9*3600)), 1), "the time zone of the clock does not matter")
	p.Windows = []recovery.Window{{Start: now(), End: now().Add(hour), Reason: "x"}}
	assert.True(t, inside(now(), 50))
	assert.False(t, inside(now().Add(hour), 50))
}

// TestDurations checks the text of durations.
func TestDurations(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10m", "168h", "1h30m", "90s", "0s", "1h0m5s", "10h"} {
		var d recovery.Duration
		require.NoError(t, d.UnmarshalText([]byte(text)))
		var again recovery.Duration
		require.NoError(t, again.UnmarshalText([]byte(d.String())))
		assert.Equal(t, d, again, text)
	}
	assert.Equal(t, "10m", recovery.Duration(10*time.Minute).String())
	assert.Equal(t, "10h", recovery.Duration(10*hour).String())
	assert.Equal(t, "1m30s", recovery.Duration(90*time.Second).String())
}

// TestLimit compares the limit of a status with that of Decide.
func TestLimit(t *testing.T) {
	t.Parallel()
	p := recovery.Default()
	p.Budgets = append(p.Budgets, recovery.Budget{Scope: recovery.ScopeRack, Key: "r07", Count: 9, Percent: 20})
	for _, c := range []struct {
		size    recovery.Size
		limit   int
		limited bool
	}{
		{recovery.Size{Scope: recovery.ScopeFleet, Nodes: 1000}, 5, true},
		{recovery.Size{Scope: recovery.ScopeFleet, Nodes: 39}, 3, true},
		{recovery.Size{Scope: recovery.ScopeFleet}, 0, true},
		{recovery.Size{Scope: recovery.ScopeRack, Key: "r01", Nodes: 20}, 1, true},
		{recovery.Size{Scope: recovery.ScopeRack, Key: "r07", Nodes: 20}, 4, true},
		{recovery.Size{Scope: recovery.ScopeRack, Nodes: 20}, 0, false},
		{recovery.Size{Scope: "zone", Nodes: 20}, 0, false},
	} {
		limit, limited := p.Limit(c.size)
		assert.Equal(t, c.limit, limit, "%+v", c.size)
		assert.Equal(t, c.limited, limited, "%+v", c.size)
	}
}

// TestOutcomes counts each attempt that ended once.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	n := failing(1, ago(hour))
	ended := func(minutes int, rung recovery.Rung, outcome string) recovery.Attempt {
		return attempt(n, rung, ago(time.Duration(minutes)*time.Minute), outcome)
	}
	twice := ended(1, recovery.RungReboot, "cured")
	runs := ended(9, recovery.RungReboot, "")
	runs.EndedAt = time.Time{}
	assert.Equal(t, []recovery.OutcomeCount{
		{Checker: "node_ready", Reason: "KubeletNotReady", SKU: hgx, Rung: recovery.RungReboot, Cured: 2, NotCured: 1},
		{Checker: "node_ready", Reason: "KubeletNotReady", SKU: hgx, Rung: recovery.RungReplace, Failed: 1, Unknown: 1},
	}, recovery.Outcomes([]recovery.Attempt{
		ended(5, recovery.RungReplace, "unknown"), twice, twice, runs, ended(2, recovery.RungReboot, "cured"),
		ended(3, recovery.RungReboot, "not_cured"), ended(4, recovery.RungReplace, "failed"),
	}))
	assert.Empty(t, recovery.Outcomes(nil))
}

// FuzzDecodePolicy checks that a document is either rejected as the client's mistake, or a valid policy
// that decodes to itself and with which a round ends.
func FuzzDecodePolicy(f *testing.F) {
	full, err := json.Marshal(recovery.Default())
	require.NoError(f, err)
	f.Add(string(full))
	f.Add(`{}`)
	f.Add(`{"ladders": [], "repairs": null}`)
	f.Add(`{"mode": "armed", "budgets": [{"scope": "fleet", "count": 1, "percent": 0}]}`)
	f.Add(`{"windows": [{"weekly": {"days": ["mon"], "at": "23:59", "for": "24h"}, "reason": "x"}]}`)
	f.Add(`{"repairs": [{"match": {"checkers": ["node_ready"]}, "repair": "rma"}], "threshold": "9999999h"}`)
	f.Fuzz(func(t *testing.T, document string) {
		p, err := recovery.DecodePolicy([]byte(document))
		if err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		require.NoError(t, p.Validate())
		raw, err := json.Marshal(p)
		require.NoError(t, err)
		if len(raw) <= recovery.MaxPolicy {
			again, err := recovery.DecodePolicy(raw)
			require.NoError(t, err)
			require.Equal(t, p.Digest(), again.Digest())
		}
		require.Len(t, recovery.Decide(p, fleet(now(), 100, failing(1, ago(hour)), node(2))).Decisions, 2)
	})
}

// TestPolicyDoc checks the documents of docs/recovery-policy.md: the first is the default policy. The
// table of brakes lists all of them.
func TestPolicyDoc(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/recovery-policy.md")
	require.NoError(t, err)
	documents := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(doc, -1)
	require.Len(t, documents, 2)
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(documents[0][1], &fields))
	var want map[string]json.RawMessage
	raw, err := json.Marshal(recovery.Default())
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &want))
	assert.Subset(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(fields)))
	for field := range want {
		assert.Contains(t, string(doc), "`"+field+"`", "the table of fields")
	}
	for _, d := range documents {
		_, err := recovery.DecodePolicy(d[1])
		require.NoError(t, err)
	}
	p, err := recovery.DecodePolicy(documents[0][1])
	require.NoError(t, err)
	assert.Equal(t, recovery.Default(), p)
	for _, b := range []recovery.Brake{
		recovery.BrakeMonitor, recovery.BrakeThreshold, recovery.BrakeSamples, recovery.BrakeBootGrace, recovery.BrakeBudget,
		recovery.BrakeBreaker, recovery.BrakeRack, recovery.BrakeCooldown, recovery.BrakeFlapping, recovery.BrakeWindow,
		recovery.BrakeHeld, recovery.BrakeApproval, recovery.BrakeSuspect,
	} {
		assert.Contains(t, string(doc), "| `"+string(b)+"` |")
	}
}
