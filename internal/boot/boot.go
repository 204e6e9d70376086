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
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// hold is how long a reference is not replaced by another try of the same operation. A try
// creates the machine within activities.ProviderTimeout of its start or not at all. The pauses
// between the tries soon exceed it, so that the rejections do not hide why a provider fails.
const hold = activities.ProviderTimeout

// Tokens stores the references to bundles.
type Tokens interface {
	// TokenExpiry returns when a reference that is issued now expires, by the database's time.
	TokenExpiry(ctx context.Context) (time.Time, error)
	// IssueBoot stores a one-time reference for the machine that an operation creates, and
	// voids the node's older one, with an audit row of the operation. KindFenced if the
	// operation ended, undoes its work or does not hold the node. machine.ReasonStarting if
	// the operation has issued the older one within hold: another try may still create the
	// machine with it, and that machine could not enroll if it were void.
	IssueBoot(ctx context.Context, t trust.MintedToken, f activities.Fence, hold time.Duration) error
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
	if err := i.Tokens.IssueBoot(ctx, m, f, hold); err != nil {
		return activities.Boot{}, err
	}
	return b, nil
}

//go:embed user-data.sh.tmpl
var userDataTemplate string

// userData returns the script that cloud-init runs on a machine whose image has no agent.
func userData(b activities.Boot) ([]byte, error) {
	t, err := template.New("user-data.sh").Funcs(template.FuncMap{"sh": text.ShellQuote}).Parse(userDataTemplate)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "reading the template of the user data")
	}
	var out strings.Builder
	if err := t.Execute(&out, values{Boot: b}); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "making the user data")
	}
	return []byte(out.String()), nil
}

// values are the data of the template.
type values struct{ activities.Boot }

// CA is the CA bundle without its last line break.
func (v values) CA() string { return strings.TrimSpace(v.CABundlePEM) }

// Request are the settings of curl that send the reference.
func (v values) Request() string {
	return "url = \"" + v.BaseURL + "/internal/v1/bootstrap/script\"\n" + trust.BootstrapRequest{Reference: v.Reference}.Curl()
}
