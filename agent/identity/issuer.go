package identity

import (
	"encoding/hex"
	"sync/atomic"
	"time"
)

// unknownIssuerLimit is how long the server may not recognize the issuer of the identity
// in use before the node recovers. Every replica of the API has read the node CAs again by
// then.
const unknownIssuerLimit = 3 * time.Minute

// issuerWatch is the version whose issuer the server has not recognized since a time. It is
// zero if the server accepted the last request.
type issuerWatch struct {
	unknownSerial string
	unknownSince  time.Time
}

// unknownTooLong records that the server does not recognize the version's issuer, and reports
// whether it has not done so for the limit. A CA that was made again under the same name is
// not missing from the handshake's list of issuers, which has names only.
func (w *issuerWatch) unknownTooLong(serial string, now time.Time) bool {
	if w.unknownSerial != serial {
		w.unknownSerial, w.unknownSince = serial, now
	}
	return now.Sub(w.unknownSince) >= unknownIssuerLimit
}

// renewalRequest is the request of a task for a certificate of another CA.
type renewalRequest struct {
	// renewFrom is the hex key ID of the CA, nil without a request.
	renewFrom atomic.Pointer[string]
}

// RenewUnlessFrom has the next pass renew a certificate in use of another CA than the one
// with the key ID in hex. "" changes nothing. It may be called from any goroutine.
func (r *renewalRequest) RenewUnlessFrom(issuerKey string) {
	if issuerKey != "" {
		r.renewFrom.Store(&issuerKey)
	}
}

// renewalAsked reports whether a task asks for a certificate of another CA than the version's.
func (r *renewalRequest) renewalAsked(v *Version) bool {
	from := r.renewFrom.Load()
	return from != nil && *from != hex.EncodeToString(v.Leaf.AuthorityKeyId)
}
