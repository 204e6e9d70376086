package vault

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// retiredUsage are the usages of a CA that may no longer issue.
const retiredUsage = "read-only,crl-signing"

// caIssuer is one CA of the node CA's mount.
type caIssuer struct {
	issuer

	cert *x509.Certificate
}

// is reports whether the CA is the one that a name or an ID refers to.
func (i caIssuer) is(ref string) bool { return ref != "" && (i.Name == ref || i.ID == ref) }

// issuers returns all node CAs, the oldest first.
func (r *Rotator) issuers(ctx context.Context) ([]caIssuer, error) {
	ids, err := fetch[issuerList](ctx, r.client, "issuers", list(nodeMount+"/issuers"))
	if err != nil && !errors.Is(err, errAbsent) {
		return nil, err
	}
	var all []caIssuer
	for _, id := range ids.Keys {
		i, err := fetch[issuer](ctx, r.client, "issuers", get(nodeMount+"/issuer/"+id))
		if errors.Is(err, errAbsent) {
			continue // deleted after it was listed
		}
		if err != nil {
			return nil, err
		}
		certs, err := parseCerts(i.Certificate)
		if err != nil {
			return nil, err
		}
		if len(certs) == 1 {
			all = append(all, caIssuer{i, certs[0]})
		}
	}
	slices.SortFunc(all, func(a, b caIssuer) int { return a.cert.NotBefore.Compare(b.cert.NotBefore) })
	return all, nil
}

// issuing returns the CA with which the node role signs.
func (r *Rotator) issuing(ctx context.Context) (caIssuer, error) {
	role, err := fetch[struct {
		IssuerRef string `json:"issuer_ref"`
	}](ctx, r.client, "node_role", get(nodeMount+"/roles/"+nodeRole))
	if err != nil {
		return caIssuer{}, noCA(err, "the role "+nodeRole)
	}
	i, err := fetch[issuer](ctx, r.client, "issuers", get(nodeMount+"/issuer/"+role.IssuerRef))
	if err != nil {
		return caIssuer{}, noCA(err, "the CA "+role.IssuerRef)
	}
	certs, err := parseCerts(i.Certificate)
	if err == nil && len(certs) != 1 {
		err = malformed()
	}
	if err != nil {
		return caIssuer{}, err
	}
	return caIssuer{i, certs[0]}, nil
}

func noCA(err error, what string) error {
	if !errors.Is(err, errAbsent) {
		return err
	}
	return schema.NewError(schema.KindInternal, "Vault has not %s of %s", what, nodeMount).WithNext("gpuaas admin setup")
}

// PlanCA implements activities.KeyRotator. Neither the name nor the subject of the new CA is
// that of another one: a client selects its certificate by the subjects that a server names.
func (r *Rotator) PlanCA(ctx context.Context) (oldCA, newCA string, err error) {
	now, err := r.issuing(ctx)
	if err != nil {
		return "", "", err
	}
	all, err := r.issuers(ctx)
	if err != nil {
		return "", "", err
	}
	next := 2
	for slices.ContainsFunc(all, func(i caIssuer) bool {
		return i.Name == generationName(next) || i.cert.Subject.CommonName == nodeCAName(r.env, next)
	}) {
		next++
	}
	return cmp.Or(now.Name, now.ID), generationName(next), nil
}

func generationName(n int) string { return fmt.Sprintf("g%d", n) }

// ApplyCA implements activities.KeyRotator.
func (r *Rotator) ApplyCA(ctx context.Context, of rotation.Rotation) (rotation.CA, error) {
	all, err := r.issuers(ctx)
	if err != nil {
		return rotation.CA{}, err
	}
	has := slices.ContainsFunc(all, func(i caIssuer) bool { return i.is(of.NewKey) })
	if of.Phase == rotation.Stage && !has {
		if err := r.createCA(ctx, of.NewKey); err != nil {
			return rotation.CA{}, err
		}
	}
	issues := of.OldKey
	retires := func(caIssuer) bool { return false }
	replaced := slices.ContainsFunc(all, func(i caIssuer) bool { return i.is(of.OldKey) && i.live() })
	switch of.Phase {
	case rotation.Activate, rotation.Grace:
		issues = of.NewKey
	case rotation.Retire: // also a CA that a rotation left which a revocation ended
		issues, retires = of.NewKey, func(i caIssuer) bool { return !i.is(of.NewKey) }
	case rotation.Restore, rotation.Remove:
		if !replaced {
			return rotation.CA{}, rotation.ErrKeyRetired(of.OldKey)
		}
		retires = func(i caIssuer) bool { return of.Phase == rotation.Remove && i.is(of.NewKey) }
	case rotation.Stage, rotation.Revoke:
		if !replaced && has { // the record is older than the end of the rotation
			issues = of.NewKey
		}
	}
	if err := r.selectCA(ctx, issues); err != nil {
		return rotation.CA{}, err
	}
	for _, i := range all {
		if err := r.retireCA(ctx, i, retires(i)); err != nil {
			return rotation.CA{}, err
		}
	}
	return r.readCA(ctx, issues)
}

// createCA creates a CA whose key never leaves Vault. Vault rejects a second one of the name.
func (r *Rotator) createCA(ctx context.Context, name string) error {
	var generation int
	if _, err := fmt.Sscanf(name, "g%d", &generation); err != nil {
		return schema.NewError(schema.KindInternal, "%q is not the name of a node CA", name)
	}
	data, err := withSettings("ca", map[string]any{"common_name": nodeCAName(r.env, generation), "issuer_name": name, "key_name": name, "ttl": seconds(caTTL)})
	if err != nil {
		return err
	}
	for k, v := range data { // the policy compares texts
		data[k] = fmt.Sprint(v)
	}
	_, err = r.client.call(ctx, "create_ca", create(nodeMount+"/root/generate/internal", data))
	return err
}

// selectCA makes the node role sign with a CA.
func (r *Rotator) selectCA(ctx context.Context, name string) error {
	now, err := r.issuing(ctx)
	if err != nil || now.is(name) {
		return err
	}
	_, err = r.client.call(ctx, "select_ca", patch(nodeMount+"/roles/"+nodeRole, map[string]any{"issuer_ref": name}))
	return err
}

// retireCA ends the issuing of a CA, if it is due. The API then rejects its certificates with
// issuer_retired, and their nodes recover.
func (r *Rotator) retireCA(ctx context.Context, i caIssuer, due bool) error {
	if !due || !i.live() {
		return nil
	}
	_, err := r.client.call(ctx, "retire_ca", patch(nodeMount+"/issuer/"+i.ID, map[string]any{"usage": retiredUsage}))
	return err
}

// readCA returns the CAs that nodes must have, and the one that issues.
func (r *Rotator) readCA(ctx context.Context, issues string) (rotation.CA, error) {
	all, err := r.issuers(ctx)
	if err != nil {
		return rotation.CA{}, err
	}
	var ca rotation.CA
	var live []*x509.Certificate
	for _, i := range all {
		if i.live() {
			live = append(live, i.cert)
		}
		if i.is(issues) {
			ca.Issuer, ca.IssuerKey = i.cert.Subject.String(), hex.EncodeToString(i.cert.SubjectKeyId)
		}
	}
	if ca.Issuer == "" {
		return ca, noCA(errAbsent, "the CA "+issues)
	}
	ca.Bundle = trust.BundleDigest(live...)
	return ca, nil
}
