package identity

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Config is what an identity depends on.
type Config struct {
	NodeID string
	Env    string
	// Server names the node API in logs.
	Server string
	// Token is the enrollment token, or the recovery token that replaced it; it
	// may be empty once the node is enrolled.
	Token schema.Secret
	// EnvFile is rewritten when its token is used; "" when there is none.
	EnvFile string
	// CertPath and KeyPath get a copy of the identity in use.
	CertPath, KeyPath string
	// NodeCABundlePath holds the issuers that node certificates are compared
	// with.
	NodeCABundlePath string
	AgentVersion     string
	// CheckRemoval accepts a signed removal of an identity of this node. Nothing else
	// makes the manager delete the identity on an answer of the server.
	CheckRemoval func(id trust.Identity, document []byte) error
}

// Timing is every interval of the manager.
type Timing struct {
	// PollTimeout is the longest poll.
	PollTimeout time.Duration
	// Retry is for failures that end without an operator.
	Retry wait.Range
	// Refused is for refusals that only a new bundle resolves.
	Refused wait.Range
	// Renewal is for a certificate that could not be renewed.
	Renewal wait.Range
	// Locked is for a locked node.
	Locked wait.Range
	// Removed is for a node that the server calls removed without a valid proof.
	Removed wait.Range
}

// API is the node API as far as an identity needs it.
type API interface {
	// Request asks for a certificate without presenting one.
	Request(ctx context.Context, path string, body any) (wire.EnrollResponse, error)
	// Renew asks for the next certificate with the identity in use.
	Renew(ctx context.Context, r wire.RenewRequest) (wire.EnrollResponse, error)
	// Confirm makes one authenticated call that presents another certificate and
	// has no effect on the node's work.
	Confirm(ctx context.Context, present Presenter) error
	// Reconnect makes the next request begin with a handshake.
	Reconnect() error
}

// Clock is the time against which certificates are checked.
type Clock interface {
	// Now is the server's time as far as it is known.
	Now() time.Time
	// Local is the clock of the node.
	Local() time.Time
	// Restore takes a lower bound that a previous process stored.
	Restore(floor time.Time)
	// Floor is the latest time that a server sent.
	Floor() time.Time
}

// Presenter chooses the certificate of a handshake.
type Presenter func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

// State is what is known about the node's identity.
type State string

// The states. A manager that has read nothing yet is in none of them.
const (
	// StateNone: there is no identity to present.
	StateNone State = "none"
	// StateActive: the identity in use is good.
	StateActive State = "active"
	// StateRenewing: the identity in use is good and due for renewal.
	StateRenewing State = "renewing"
	// StateUnconfirmed: a newer identity is stored, and the server has not
	// accepted it yet.
	StateUnconfirmed State = "unconfirmed"
	// StateExpired: the identity in use must be replaced, because it expired, its
	// issuer is retired, or its files were moved aside.
	StateExpired State = "expired"
	// StateRejected: the server rejects the identity in use and there is no
	// other. It is tried again after a wait.
	StateRejected State = "rejected"
	// StateSuperseded: another identity of this node took the place of the one
	// in use. It is tried again after a wait.
	StateSuperseded State = "superseded"
	// StateLocked: the node is locked until an operator decides. The identity is
	// tried again after a long wait.
	StateLocked State = "locked"
	// StateUnproven: the server calls the node removed and has sent no valid removal.
	// Everything is kept, and the identity is tried again after a wait.
	StateUnproven State = "removal_unproven"
	// StateRemoved: the node is removed, and its keys and tokens are wiped.
	StateRemoved State = "removed"
)
