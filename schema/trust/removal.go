package trust

import (
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// RemovalPayloadType is the DSSE payload type of a Removal.
const RemovalPayloadType = "application/vnd.gpuaas.removal.v1+json"

// RemovalLifetime is how long a signed removal is accepted. A newer one is signed for a
// node that still asks.
const RemovalLifetime = 7 * 24 * time.Hour

// Reasons for rejecting a removal, apart from those of every signed document.
const (
	ReasonOtherNode     = "other_node"
	ReasonOtherIdentity = "other_incarnation"
	ReasonNotYetValid   = "not_yet_valid"
	ReasonPastExpiry    = "expired"
)

// Removal is the signed body of the document that makes an agent delete its identity: a
// DSSE payload of type RemovalPayloadType, signed by the task key. The worker signs it,
// and only for an operation that removed the node and completed, as its row and its audit
// event show, with no identity issued since. A state in the node's row is no reason to
// sign. The document is for one incarnation, so it is void once the node enrolls again.
type Removal struct {
	V           int       `json:"v"` // 1
	Env         string    `json:"env"`
	NodeID      string    `json:"node_id"`
	Incarnation int64     `json:"incarnation"`
	OperationID string    `json:"operation_id"`
	IssuedAt    time.Time `json:"issued_at"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// NewRemoval returns the removal of an identity by an operation.
func NewRemoval(id Identity, operationID string, now time.Time) Removal {
	return Removal{V: 1, Env: id.Env, NodeID: id.NodeID, Incarnation: id.Incarnation, OperationID: operationID,
		IssuedAt: now.UTC(), ExpiresAt: now.Add(RemovalLifetime).UTC()}
}

// CheckRemoval verifies that one of the keys signed the envelope as the removal of the
// identity, and that it is valid at a time. Errors are KindInvalidRequest with a reason.
func CheckRemoval(envelope []byte, keys []VerifierKey, id Identity, now time.Time) (r Removal, err error) {
	body, _, err := OpenEnvelope(RemovalPayloadType, envelope, keys)
	if err != nil {
		return r, err
	}
	if err := schema.DecodeStrict(body, MaxDocumentBytes, &r); err != nil {
		return r, reject(ReasonBody, "cannot parse the removal: %v", err)
	}
	switch {
	case r.V != 1:
		return r, reject(ReasonVersion, "version %d of the removal is unsupported", r.V)
	case r.Env != id.Env:
		return r, reject(ReasonEnvironment, "the removal is for another environment")
	case r.NodeID != id.NodeID:
		return r, reject(ReasonOtherNode, "the removal is for another node")
	case r.Incarnation != id.Incarnation:
		return r, reject(ReasonOtherIdentity, "the removal is for incarnation %d, this is %d", r.Incarnation, id.Incarnation)
	case !schema.IsID(r.OperationID):
		return r, reject(ReasonBody, "the removal names no operation")
	case now.Add(ClockSkew).Before(r.IssuedAt):
		return r, reject(ReasonNotYetValid, "the removal is valid from %s", r.IssuedAt.Format(time.RFC3339))
	case !now.Before(r.ExpiresAt) || r.ExpiresAt.Sub(r.IssuedAt) > RemovalLifetime:
		return r, reject(ReasonPastExpiry, "the removal expired at %s", r.ExpiresAt.Format(time.RFC3339))
	}
	return r, nil
}
