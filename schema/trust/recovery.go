package trust

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Lifetimes and windows of node identities.
const (
	// CertTTL is the lifetime of a node certificate.
	CertTTL = 72 * time.Hour
	// RenewAt is the fraction of its lifetime after which a certificate is
	// renewed, plus or minus RenewJitter, so that a fleet does not renew at once.
	RenewAt     = 0.5
	RenewJitter = 0.1
	// RecoveryTokenTTL is how long a disconnected node can recover without an
	// operator. Each enrollment, renewal and recovery replaces the token.
	RecoveryTokenTTL = 90 * 24 * time.Hour
	// InFlight is the time after a promotion during which requests under the
	// replaced serial are rejected without an alarm: they were already in flight.
	InFlight = 2 * time.Minute
)

// EnrollStatement is the statement that the recovery key signs at an enrollment.
// It binds the key to the node, the token and the CSR.
func EnrollStatement(nodeID, token, csrPEM string, recoveryKey ed25519.PublicKey) []byte {
	return fmt.Appendf(nil, "gpuaas enroll v1\n%s\n%s\n%s\n%s\n", nodeID, schema.SHA256Hex([]byte(token)), schema.SHA256Hex([]byte(csrPEM)),
		base64.StdEncoding.EncodeToString(recoveryKey))
}

// RecoverStatement is the statement that the recovery key signs at a recovery.
func RecoverStatement(nodeID string, incarnation, sequence int64, token, csrPEM string) []byte {
	return fmt.Appendf(nil, "gpuaas recover v1\n%s\n%d\n%d\n%s\n%s\n", nodeID, incarnation, sequence,
		schema.SHA256Hex([]byte(token)), schema.SHA256Hex([]byte(csrPEM)))
}

// CheckStatement reports whether signature (base64) is the key's signature of the
// statement.
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
