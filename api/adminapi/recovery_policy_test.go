package adminapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
)

func (f *recoveryRows) PolicyWithDigest(_ context.Context, digest string) (record.Policy, error) {
	for _, p := range f.past {
		if p.Digest == digest {
			return p, nil
		}
	}
	return record.Policy{}, schema.NewError(schema.KindNotFound, "no such version")
}

// policyWith returns the default policy with a number of samples, as it is stored.
func policyWith(t *testing.T, samples int) record.Policy {
	t.Helper()
	p := recovery.Default()
	p.Samples = samples
	s, err := record.Stored(p)
	require.NoError(t, err)
	return s
}

// TestPolicyOfAnother: of two operators who change one policy, the second one overwrites nothing, and reads
// who changed what. The same holds for a dry run and for arming.
func TestPolicyOfAnother(t *testing.T) {
	t.Parallel()
	base, now := policyWith(t, 3), policyWith(t, 7)
	now.Version, now.Actor, now.Reason, now.At = 5, "bob", "CHG-9", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for path, body := range map[string]string{
		"/policy":     `{"body": {"samples": 4}, "reason": "CHG-1", "expected_digest": "` + base.Digest + `"}`,
		"/policy?dry": `{"body": {"samples": 4}, "reason": "", "dry_run": true, "expected_digest": "` + base.Digest + `"}`,
		"/arm":        `{"reason": "CHG-1", "expected_digest": "` + base.Digest + `"}`,
	} {
		f := &recoveryRows{policy: now, past: []record.Policy{base}}
		code, failure := askRecovery(t, f, "admin", http.MethodPost, strings.TrimSuffix(path, "?dry"), body, nil)
		require.Equal(t, http.StatusConflict, code, path)
		require.Equal(t, []any{schema.KindDecisionOutdated, adminapi.ReasonPolicyChanged}, []any{failure.Error.Code, failure.Error.Reason}, path)
		require.Contains(t, failure.Error.Message, "version 5, which bob stored at 2026-03-01T12:00:00Z: CHG-9; what changed since the default policy: samples: 3 → 7", path)
		require.Contains(t, failure.Error.Next, "gpuaas recovery policy show", path)
		require.Equal(t, now, f.policy, path)

		f.past = nil
		_, failure = askRecovery(t, f, "admin", http.MethodPost, strings.TrimSuffix(path, "?dry"), body, nil)
		require.Contains(t, failure.Error.Message, "is not stored", path)
	}
}

// TestExpectedPolicy: the expected policy is changed. A repeat of that request is accepted, though another
// policy is in use by then, and disarm expects none.
func TestExpectedPolicy(t *testing.T) {
	t.Parallel()
	now := policyWith(t, 7)
	f := &recoveryRows{policy: now}
	for _, request := range [][2]string{
		{"/policy", `{"body": {"samples": 4}, "reason": "CHG-1", "expected_digest": "` + now.Digest + `"}`},
		{"/arm", `{"reason": "CHG-1", "expected_digest": "` + policyWith(t, 4).Digest + `"}`},
	} {
		for range 2 {
			var p record.Policy
			code, failure := askRecovery(t, f, "admin", http.MethodPost, request[0], request[1], &p)
			require.Equal(t, http.StatusOK, code, failure)
			require.Equal(t, f.policy.Digest, p.Digest)
		}
	}
	require.Equal(t, recovery.ModeArmed, f.policy.Mode)
	code, _ := askRecovery(t, f, "admin", http.MethodPost, "/disarm", `{"reason": "CHG-2"}`, nil)
	require.Equal(t, http.StatusOK, code)
	code, _ = askRecovery(t, f, "admin", http.MethodPost, "/disarm", `{"reason": "CHG-2", "expected_digest": "x"}`, nil)
	require.Equal(t, http.StatusBadRequest, code)
	require.Equal(t, now.Mode, f.policy.Mode)
}

// TestDisarmUnreadable: a stored policy that cannot be read is replaced by the default one. Arming it is
// an error.
func TestDisarmUnreadable(t *testing.T) {
	t.Parallel()
	unreadable := record.Policy{Version: 3, Digest: "x", Body: []byte(`{"samples": "many"}`), Mode: recovery.ModeArmed}
	f := &recoveryRows{policy: unreadable}
	code, failure := askRecovery(t, f, "admin", http.MethodPost, "/arm", `{"reason": "CHG-1", "expected_digest": "x"}`, nil)
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, "policy_unreadable", failure.Error.Reason)
	code, failure = askRecovery(t, f, "admin", http.MethodPost, "/disarm", `{"reason": "CHG-2"}`, nil)
	require.Equal(t, http.StatusOK, code, failure)
	require.Equal(t, recovery.Default().Digest(), f.policy.Digest)
	require.Equal(t, recovery.ModeMonitor, f.policy.Mode)
}
