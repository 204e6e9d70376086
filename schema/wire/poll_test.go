package wire_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const goodPoll = `{"held_tasks":["0198c0de-0000-7000-8000-000000000001"],"nonce":"AAAAAAAAAAAAAAAAAAAAAA",` +
	`"agent_session":"boot-1700000000","poll_seq":7,"verifier_set":3,"wait_seconds":27.5}`

func parsePoll(body string) (r wire.PollRequest, err error) {
	if err := schema.DecodeStrict([]byte(body), wire.MaxPollBytes, &r); err != nil {
		return r, err
	}
	return r, r.Validate()
}

func TestPollRequest(t *testing.T) {
	t.Parallel()
	r, err := parsePoll(goodPoll)
	require.NoError(t, err)
	require.Equal(t, wire.PollRequest{HeldTasks: []string{"0198c0de-0000-7000-8000-000000000001"}, Nonce: "AAAAAAAAAAAAAAAAAAAAAA",
		AgentSession: "boot-1700000000", PollSeq: 7, VerifierSet: 3, WaitSeconds: 27.5}, r)
	require.Equal(t, 27500*time.Millisecond, r.Wait())
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, goodPoll, string(text))
	require.Zero(t, wire.PollRequest{}.Wait())
	require.Equal(t, wire.MaxPollTimeout, wire.PollRequest{WaitSeconds: 1e300}.Wait())
}

func TestPollRequestRejectsInvalidFields(t *testing.T) {
	t.Parallel()
	id := schema.NewID()
	for reason, changes := range map[string][]func(*wire.PollRequest){
		"bad_held_tasks": {
			func(r *wire.PollRequest) { r.HeldTasks = []string{"x"} },
			func(r *wire.PollRequest) { r.HeldTasks = []string{id, ""} },
			func(r *wire.PollRequest) {
				r.HeldTasks = strings.Split(strings.Repeat(id+",", wire.MaxHeldTasks)+id, ",")
			},
		},
		"bad_nonce": {
			func(r *wire.PollRequest) { r.Nonce = "" },
			func(r *wire.PollRequest) { r.Nonce = r.Nonce[1:] },
			func(r *wire.PollRequest) { r.Nonce += "A" },
			func(r *wire.PollRequest) { r.Nonce = r.Nonce[1:] + "B" }, // the same bytes in another encoding
			func(r *wire.PollRequest) { r.Nonce = r.Nonce[1:] + "+" },
			func(r *wire.PollRequest) { r.Nonce = r.Nonce[:11] + "\n" + r.Nonce[11:] },
		},
		"bad_agent_session": {
			func(r *wire.PollRequest) { r.AgentSession = "" },
			func(r *wire.PollRequest) { r.AgentSession = "a\x00" },
			func(r *wire.PollRequest) { r.AgentSession = "ä" },
			func(r *wire.PollRequest) { r.AgentSession = strings.Repeat("h", wire.MaxSession+1) },
		},
		"bad_poll_seq": {
			func(r *wire.PollRequest) { r.PollSeq = -1 },
			func(r *wire.PollRequest) { r.PollSeq = math.MaxInt64 },
		},
		"bad_verifier_set": {
			func(r *wire.PollRequest) { r.VerifierSet = -1 },
			func(r *wire.PollRequest) { r.VerifierSet = math.MaxInt64 },
		},
		"bad_verifier_set_hash": {
			func(r *wire.PollRequest) { r.VerifierSetHash = "x" },
			func(r *wire.PollRequest) { r.VerifierSetHash = strings.Repeat("A", 64) },
		},
		"bad_wait_seconds": {
			func(r *wire.PollRequest) { r.WaitSeconds = -1 },
			func(r *wire.PollRequest) { r.WaitSeconds = math.NaN() },
		},
		"bad_health": {func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady, Health: &health.Report{}}
		}, func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady, Health: &health.Report{At: time.Now(), Conditions: []health.Condition{
				{Checker: "gpu_xid", Status: health.Healthy, Reason: "NoXID", Detail: "a\x1b[2J", Since: time.Now()}}}}
		}, func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady, Health: &health.Report{At: time.Now(), Conditions: make([]health.Condition, health.MaxConditions+1)}}
		}},
		"bad_workloads": {func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady, Workloads: make([]task.Workload, wire.MaxWorkloads+1)}
		}, func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady, Workloads: []task.Workload{{Name: "a", Kind: "docker", Warning: "b\x1b[2J"}}}
		}, func(r *wire.PollRequest) {
			r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady,
				Workloads: []task.Workload{{Name: "a", Kind: "docker", Warning: strings.Repeat("w", wire.MaxWorkloadWarning+1)}}}
		}},
	} {
		for _, change := range changes {
			r, err := parsePoll(goodPoll)
			require.NoError(t, err)
			change(&r)
			e := schema.AsError(r.Validate())
			require.NotNil(t, e, "%s: %+v", reason, r)
			require.Equal(t, schema.KindInvalidRequest, e.Kind)
			require.Equal(t, reason, e.Reason, "%+v", r)
		}
	}
}

// longestReport is the longest health report that is valid.
func longestReport(at time.Time) *health.Report {
	r := &health.Report{At: at, BootID: strings.Repeat("<", 64)}
	for i := range health.MaxConditions {
		r.Conditions = append(r.Conditions, health.Condition{
			Checker: strings.Repeat("c", health.MaxName), Component: strings.Repeat("<", health.MaxComponent-3) + fmt.Sprintf("%03d", i),
			Status: health.Unhealthy, Reason: strings.Repeat("R", health.MaxReason), Code: 1 << 30, Repair: health.RepairResetGPU,
			Detail: strings.Repeat("<", health.MaxDetail), Since: at, Samples: 1 << 30, FaultSince: at, FaultSamples: 1 << 30, UnknownSeconds: 1 << 30,
		})
	}
	return r
}

// TestLongestPoll: the longest poll that is valid fits the body, whatever characters the node
// reports. encoding/json writes < with six bytes.
func TestLongestPoll(t *testing.T) {
	t.Parallel()
	longest := func(limit int) string { return strings.Repeat("<", limit) }
	w := task.Workload{Name: longest(wire.MaxWorkloadName), Kind: strings.Repeat("k", wire.MaxWorkloadKind), Stopping: true,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600)), Warning: longest(wire.MaxWorkloadWarning)}
	hash := strings.Repeat("a", 64)
	r := wire.PollRequest{Nonce: strings.Repeat("A", 22), AgentSession: strings.Repeat("s", wire.MaxSession), PollSeq: wire.MaxInteger,
		VerifierSet: wire.MaxInteger, VerifierSetHash: hash, NodeCABundle: hash, AuditCheckpoint: longest(audit.MaxCheckpointText),
		HeldTasks:   slices.Repeat([]string{schema.NewID()}, wire.MaxHeldTasks),
		WaitSeconds: math.Pi, Floors: task.Floors{TaskSeq: wire.MaxInteger, IdentitySequence: wire.MaxInteger},
		Heartbeat: &wire.Heartbeat{AgentVersion: longest(wire.MaxAgentVersion), UptimeSeconds: wire.MaxInteger, BootID: longest(wire.MaxSession),
			Cordoned: true, Phase: wire.PhaseReady, Fault: longest(wire.MaxFault), Driver: strings.Repeat("d", wire.MaxWorkloadKind),
			DriverFault: longest(wire.MaxFault), At: w.Since, Workloads: slices.Repeat([]task.Workload{w}, wire.MaxWorkloads), Health: longestReport(w.Since)}}
	require.NoError(t, r.Validate())
	body, err := json.Marshal(r)
	require.NoError(t, err)
	require.LessOrEqual(t, len(body), wire.MaxPollBytes)
}

// FuzzPollRequest checks that every body is rejected with a reason or is within
// bounds.
func FuzzPollRequest(f *testing.F) {
	for _, seed := range []string{goodPoll, "", "{}", strings.Replace(goodPoll, ":3,", ":-3,", 1),
		strings.Replace(goodPoll, "boot", "b\\u0000t", 1), strings.Replace(goodPoll, "AAAA", "AA+A", 1),
		strings.Replace(goodPoll, "27.5", "1e400", 1), strings.Replace(goodPoll, "27.5", "9223372036854775807", 1),
		strings.Replace(goodPoll, `["`, `["","`, 1), strings.Replace(goodPoll, "poll_seq", "number", 1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := parsePoll(body)
		if err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		require.True(t, r.Wait() >= 0 && r.Wait() <= wire.MaxPollTimeout)
		require.LessOrEqual(t, len(r.HeldTasks), wire.MaxHeldTasks)
		for _, id := range r.HeldTasks {
			require.True(t, schema.IsID(id))
		}
		raw, err := base64.RawURLEncoding.DecodeString(r.Nonce)
		require.NoError(t, err)
		require.Len(t, raw, wire.NonceBytes)
		require.Equal(t, r.Nonce, base64.RawURLEncoding.EncodeToString(raw))
		require.True(t, r.AgentSession != "" && len(r.AgentSession) <= wire.MaxSession)
		require.True(t, r.VerifierSet >= 0 && r.PollSeq >= 0)
		if h := r.Heartbeat; h != nil {
			require.True(t, h.UptimeSeconds >= 0 && len(h.AgentVersion) <= wire.MaxAgentVersion && len(h.Workloads) <= wire.MaxWorkloads)
		}
	})
}
