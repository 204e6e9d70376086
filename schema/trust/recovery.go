package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Lives and windows of node identities (design/architecture.md §7, trust.md
// C2, C3).
const (
	// CertTTL is the life of a node certificate.
	CertTTL = 72 * time.Hour
	// RenewAt is the part of its life after which a certificate is renewed,
	// give or take RenewJitter, so that a fleet does not renew in step.
	RenewAt     = 0.5
	RenewJitter = 0.1
	// RecoveryTokenTTL is the longest a node may be dark and come back by
	// itself. The token is replaced at each enrolment, renewal and recovery.
	RecoveryTokenTTL = 90 * 24 * time.Hour
	// InFlight is how long after a promotion requests under the replaced
	// serial are refused without an alarm: they were on their way.
	InFlight = 2 * time.Minute
)

// More token purposes.
const (
	// PurposeReissue is an operator's new enrolment of a known node: it keeps
	// the node's state and starts the next incarnation when it is claimed.
	PurposeReissue TokenPurpose = "reissue"
	// PurposeRecover lets an enrolled node come back without a usable
	// certificate. It works only with the node's recovery key.
	PurposeRecover TokenPurpose = "recover"
)

// EnrollStatement is what the recovery key signs at an enrolment: it binds the
// key to the node, the token and the CSR.
func EnrollStatement(nodeID, token, csrPEM string, recoveryKey ed25519.PublicKey) []byte {
	return fmt.Appendf(nil, "gpuaas enroll v1\n%s\n%s\n%s\n%s\n", nodeID, digest(token), digest(csrPEM),
		base64.StdEncoding.EncodeToString(recoveryKey))
}

// RecoverStatement is what the recovery key signs at a recovery.
func RecoverStatement(nodeID string, incarnation, sequence int64, token, csrPEM string) []byte {
	return fmt.Appendf(nil, "gpuaas recover v1\n%s\n%d\n%d\n%s\n%s\n", nodeID, incarnation, sequence, digest(token), digest(csrPEM))
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// CheckStatement reports whether signature (base64) over statement is by key.
func CheckStatement(key ed25519.PublicKey, statement []byte, signature string) bool {
	raw, err := base64.StdEncoding.Strict().DecodeString(signature)
	return err == nil && len(key) == ed25519.PublicKeySize && ed25519.Verify(key, statement, raw)
}

// ParseRecoveryKey decodes a base64 Ed25519 public key.
func ParseRecoveryKey(text string) (ed25519.PublicKey, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, schema.NewError(schema.KindInvalidRequest, "the recovery key is not a base64 Ed25519 key").WithReason("recovery_key")
	}
	return raw, nil
}

// Via says how an identity was issued.
type IssueMethod string

// The ways to an identity.
const (
	IssuedByEnroll  IssueMethod = "enroll"
	IssuedByRenew   IssueMethod = "renew"
	IssuedByRecover IssueMethod = "recover"
)
