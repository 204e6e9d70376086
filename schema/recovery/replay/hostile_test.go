package replay_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/replay"
)

// TestHostileTimes: a record with times in another century is rejected before its rounds are rebuilt.
func TestHostileTimes(t *testing.T) {
	t.Parallel()
	century := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	for name, change := range map[string]func(*replay.Facts){
		"no time":            func(f *replay.Facts) { f.Signals[0].At = time.Time{} },
		"an old signal":      func(f *replay.Facts) { f.Signals[0].At = century(1) },
		"a signal too early": func(f *replay.Facts) { f.Signals[0].At = f.Until.Add(-replay.MaxRounds * time.Minute) },
		"a late end":         func(f *replay.Facts) { f.Until = century(9999) },
		"a late signal":      func(f *replay.Facts) { f.Signals[0].At, f.Until = century(9999), time.Time{} },
	} {
		f := facts()
		f.Signals = []health.Signal{signal(1, 0, health.Unhealthy), signal(2, time.Minute, health.Unhealthy)}
		f.Until = after(time.Hour)
		require.NoError(t, f.Check(time.Minute))
		change(&f)
		err := f.Check(time.Minute)
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "bad_record"}, name)
		require.NotEmpty(t, schema.AsError(err).Next, name)
	}
	require.NoError(t, replay.Facts{Until: century(9999)}.Check(0), "without signals there are no rounds")
	f := replay.Facts{Signals: []health.Signal{signal(1, 0, health.Unhealthy)}, Until: after((replay.MaxRounds - 1) * time.Second)}
	require.NoError(t, f.Check(time.Second))
	require.Error(t, replay.Facts{Signals: f.Signals, Until: f.Until.Add(time.Second)}.Check(time.Second))
}

// record is what FuzzReplay decodes.
type record struct {
	replay.Facts
	Policy json.RawMessage
	Step   time.Duration
}

// FuzzReplay: whatever the record has, it is rejected with a kind or replayed, and a policy does not differ
// from itself.
func FuzzReplay(f *testing.F) {
	seed := facts()
	seed.Nodes, seed.Until = seed.Nodes[:3], after(time.Hour)
	seed.Signals = []health.Signal{signal(1, 0, health.Unhealthy), signal(1, 20*time.Minute, health.Unknown), signal(2, time.Minute, health.Unhealthy)}
	seed.Nodes[1].Attempts = []recovery.Attempt{{OperationID: "op", NodeID: id(1), Rung: recovery.RungReboot, StartedAt: after(time.Minute)}}
	raw, err := json.Marshal(record{Facts: seed, Policy: json.RawMessage(`{"mode": "armed", "samples": 1}`), Step: time.Minute})
	require.NoError(f, err)
	f.Add(raw)
	f.Add([]byte(strings.ReplaceAll(string(raw), "2026-11-02", "0001-01-01")))
	f.Add([]byte(strings.Repeat("[", 20_000)))
	for _, value := range []string{"NaN", "1e400", fmt.Sprint(int64(math.MinInt64)), `"60s"`, "{}", "[[]]", "null", "-1"} {
		f.Add([]byte(strings.Replace(string(raw), `"Step":60000000000`, `"Step":`+value, 1)))
		f.Add([]byte(strings.ReplaceAll(string(raw), `"nodes":200`, `"nodes":`+value)))
		f.Add([]byte(strings.ReplaceAll(string(raw), `"gpus":8`, `"gpus":`+value)))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var in record
		if json.Unmarshal(document, &in) != nil {
			return
		}
		p, err := recovery.DecodePolicy(in.Policy)
		if err == nil {
			err = in.Check(in.Step)
		}
		if err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		d := replay.Run(p, p, first(replay.Rounds(in.Facts, in.Step), 200), replay.Options{NotCured: len(document)%2 == 0})
		require.Empty(t, d.Changes)
	})
}

// first returns the first rounds, so that each input of the fuzzer takes a moment.
func first(rounds iter.Seq[recovery.Fleet], most int) iter.Seq[recovery.Fleet] {
	return func(yield func(recovery.Fleet) bool) {
		left := most
		for f := range rounds {
			if left--; left < 0 || !yield(f) {
				return
			}
		}
	}
}
