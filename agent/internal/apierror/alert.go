package apierror

import (
	"errors"
	"net"
)

// Alert returns the text of the TLS alert with which the server ended a handshake, "" if none did.
// crypto/tls does not export the type of an alert. A test compares its texts, which
// follow the names of RFC 8446, with a real handshake.
func Alert(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return ""
	}
	return op.Err.Error()
}
