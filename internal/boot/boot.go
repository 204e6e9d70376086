// Package boot issues what new machines enroll with.
package boot

import (
	"context"
	_ "embed"
	"strings"
	"text/template"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Tokens stores the references to bundles, as adminapi.EnrollmentTokens specifies.
type Tokens interface {
	TokenExpiry(ctx context.Context) (time.Time, error)
	IssueFetch(ctx context.Context, t trust.MintedToken, by audit.Subject) error
}

// Issuer issues references to bundles for new machines. It implements activities.Boots.
type Issuer struct {
	Tokens Tokens
	// CA returns the CAs that verify the certificate of the node API, as PEM.
	CA func(ctx context.Context) (string, error)
	// NodeURL is the address of the node API.
	NodeURL string
}

// NewBoot implements activities.Boots. The reference is issued last, so that none is left
// without a machine.
func (i Issuer) NewBoot(ctx context.Context, f activities.Fence) (activities.Boot, error) {
	ca, err := i.CA(ctx)
	if err != nil {
		return activities.Boot{}, err
	}
	expires, err := i.Tokens.TokenExpiry(ctx)
	if err != nil {
		return activities.Boot{}, err
	}
	reference, m := trust.Mint(f.NodeID, trust.PurposeEnroll, expires)
	b := activities.Boot{BaseURL: i.NodeURL, CABundlePEM: ca, Reference: reference}
	if b.UserData, err = userData(b); err != nil {
		return activities.Boot{}, err
	}
	return b, i.Tokens.IssueFetch(ctx, m, audit.Subject{Actor: f.Actor, Via: f.Via, CorrelationID: f.CorrelationID})
}

//go:embed user-data.sh.tmpl
var userDataTemplate string

// userData returns the script that cloud-init runs on a machine whose image has no agent.
func userData(b activities.Boot) ([]byte, error) {
	t, err := template.New("user-data.sh").Parse(userDataTemplate)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "reading the template of the user data")
	}
	var out strings.Builder
	if err := t.Execute(&out, b); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making the user data")
	}
	return []byte(out.String()), nil
}
