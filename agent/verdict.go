package agent

import (
	"errors"
	"net"

	"github.com/gpuaas/gpuaas/schema"
)

// errIssuer means that no stored identity is of an issuer that the server
// accepts. The handshake ends with it before anything is sent.
var errIssuer = errors.New("the server accepts no certificate of this one's issuer")

// verdict is what a failed request says about the identity it was made with.
type verdict int

const (
	// fine: nothing; the request may be made again.
	fine verdict = iota
	// dead: the certificate is past its time or its issuer is retired, by the
	// server's word or by its TLS. Only this leads to recovery.
	dead
	// unknown: the API does not know the issuer.
	unknown
	// superseded: another identity of this node took this one's place.
	superseded
	// locked: an operator must decide.
	locked
	// removed: this node is no more.
	removed
	// refused: any other refusal of the caller.
	refused
)

// judge reads the verdict of an error.
//
// Of the coded answers, expired and issuer_retired lead to recovery, and no
// other (S-ENR-21, S-CRT-05). unknown_issuer is what a replica that has not read
// a new CA generation yet says of a good certificate; where the issuer is gone
// for good the next handshake does not name it, and that leads to recovery.
// serial_superseded never does for a certificate that was once used: whoever
// holds it may be a copy, and a copy must not get a new one by itself. One whose
// key is still staged was never used; it may be asked for again, with that very
// key.
func judge(err error) verdict {
	if err == nil {
		return fine
	}
	if errors.Is(err, errIssuer) || alerted(err) {
		return dead
	}
	e, ok := errors.AsType[*schema.Error](err)
	if !ok || e.Kind != schema.KindInvalidNodeIdentity {
		return fine
	}
	switch e.Reason {
	case schema.ReasonExpired, schema.ReasonIssuerRetired:
		return dead
	case schema.ReasonUnknownIssuer:
		return unknown
	case schema.ReasonSerialSuperseded:
		return superseded
	case schema.ReasonNodeLocked:
		return locked
	case schema.ReasonNodeRemoved:
		return removed
	}
	return refused
}

// alerted knows the TLS alerts that mean a dead certificate. The type of an
// alert is not exported by crypto/tls; its texts are those of RFC 8446's names
// and are held by a test against a real handshake.
func alerted(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return false
	}
	switch op.Err.Error() {
	case "tls: expired certificate", "tls: unknown certificate authority", "tls: certificate required":
		return true
	}
	return false
}

// spent knows the answers that say that a token opens nothing (any more).
func spent(err error) bool {
	switch schema.KindOf(err) {
	case schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired:
		return true
	}
	return false
}
