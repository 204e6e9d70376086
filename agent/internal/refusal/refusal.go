// Package refusal has the reasons for which a node refuses a task. The agent reports
// them to the server.
package refusal

import "github.com/gpuaas/gpuaas/schema"

// Prefixes of the reasons for refusing the documents that come with a task, and
// verifier sets. The rest of such a reason is usually one of package trust.
const (
	OfGrant    = "grant_"
	OfGrantKey = "grant_key_"
	OfSet      = "set_"
)

// Reasons about the grant and its key.
const (
	GrantKeyExpired     = OfGrantKey + "expired"
	GrantKeyNotDelegate = OfGrantKey + "not_a_delegate"
	GrantKeyLifetime    = OfGrantKey + "lifetime"
	GrantTimeAhead      = OfGrant + "time_ahead"
	GrantOtherNode      = OfGrant + "other_node"
	GrantOtherNonce     = OfGrant + "other_nonce"
	GrantOtherTask      = OfGrant + "other_task"
	GrantOtherEpoch     = OfGrant + "other_epoch"
	GrantOtherExpiry    = OfGrant + "other_expiry"
)

// Reasons about the task.
const (
	OtherNode          = "other_node"
	OtherIncarnation   = "other_incarnation"
	TaskID             = "task_id_mismatch"
	UnknownType        = "unknown_type"
	UnknownTypeVersion = "unknown_type_version"
	WrongEffect        = "wrong_effect"
	ParamsDigest       = "params_digest"
	Params             = "bad_params"
	SetTooOld          = OfSet + "too_old"
	SetExpired         = OfSet + "expired"
	SetWithheld        = OfSet + "withheld"
	NotYetValid        = "not_yet_valid"
	Expired            = "expired"
	StateExpectation   = "state_expectation"
)

// Reasons that depend on the journal.
const (
	Replay       = "replayed_seq"
	Damaged      = "damaged_entry"
	OtherPayload = "other_payload"
	OlderLease   = "older_lease"
)

// New returns a KindTaskRefused error with a reason.
func New(reason, format string, args ...any) error {
	return schema.NewError(schema.KindTaskRefused, format, args...).WithReason(reason)
}
