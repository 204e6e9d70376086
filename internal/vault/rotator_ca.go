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

// ref returns the CA's name, or its ID if it has none.
func (i caIssuer) ref() string { return cmp.Or(i.Name, i.ID) }

// hasCA reports whether the CA of a name or an ID is there and may issue, or may no longer issue.
func hasCA(all []caIssuer, ref string, live bool) bool {
	return slices.ContainsFunc(all, func(i caIssuer) bool { return i.is(ref) && i.live() == live })
}

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
	return schema.NewError(schema.KindInternal, "Vault does not have %s in %s", what, nodeMount).WithNext("gpuaas admin setup")
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
	return now.ref(), generationName(next), nil
}

func generationName(n int) string { return fmt.Sprintf("g%d", n) }

// ApplyCA implements activities.KeyRotator.
func (r *Rotator) ApplyCA(ctx context.Context, of rotation.Rotation) (rotation.CA, error) {
	all, err := r.issuers(ctx)
	if err != nil {
		return rotation.CA{}, err
	}
	if of.Phase == rotation.Stage && !slices.ContainsFunc(all, func(i caIssuer) bool { return i.is(of.NewKey) }) {
		if err := r.createCA(ctx, of.NewKey); err != nil {
			return rotation.CA{}, err
		}
	}
	goal, err := r.goalOf(ctx, of, all)
	if err != nil {
		return rotation.CA{}, err
	}
	if err := r.selectCA(ctx, goal.issues); err != nil {
		return rotation.CA{}, err
	}
	for _, i := range goal.retired {
		if err := r.retireCA(ctx, i); err != nil {
			return rotation.CA{}, err
		}
	}
	return r.readCA(ctx, goal.issues)
}

// caGoal is what a phase requires of the CAs.
type caGoal struct {
	issues  string // the name or the ID of the CA that issues
	retired []caIssuer
}

// goalOf returns what the phase of a rotation requires. The record may be older than the CAs, because
// the database was restored or the run was delayed. So a retired CA is not selected, and no CA is
// retired for it.
func (r *Rotator) goalOf(ctx context.Context, of rotation.Rotation, all []caIssuer) (caGoal, error) {
	if of.Phase == rotation.Restore || of.Phase == rotation.Remove {
		return rollbackGoal(of, all)
	}
	oldLive := hasCA(all, of.OldKey, true)
	if hasCA(all, of.NewKey, false) {
		if oldLive { // the record is older than the end of the rollback
			return caGoal{}, rotation.ErrCARetired(of.NewKey)
		}
		return r.laterGoal(ctx, all)
	}
	switch {
	case of.Phase == rotation.Stage && oldLive:
		return caGoal{issues: of.OldKey}, nil
	case of.Phase == rotation.Retire: // also a CA that a rotation left which a revocation ended
		others := slices.DeleteFunc(slices.Clone(all), func(i caIssuer) bool { return i.is(of.NewKey) })
		return caGoal{issues: of.NewKey, retired: others}, nil
	}
	return caGoal{issues: of.NewKey}, nil // in Stage, the old CA is retired
}

// rollbackGoal returns what a phase of a rollback requires.
func rollbackGoal(of rotation.Rotation, all []caIssuer) (caGoal, error) {
	if !hasCA(all, of.OldKey, true) {
		return caGoal{}, rotation.ErrKeyRetired(of.OldKey)
	}
	goal := caGoal{issues: of.OldKey}
	if of.Phase == rotation.Remove {
		goal.retired = slices.DeleteFunc(slices.Clone(all), func(i caIssuer) bool { return !i.is(of.NewKey) })
	}
	return goal, nil
}

// laterGoal returns what a phase requires whose record is older than a later rotation: the CA that
// issues now, or else the newest one that may, continues to issue.
func (r *Rotator) laterGoal(ctx context.Context, all []caIssuer) (caGoal, error) {
	now, err := r.issuing(ctx)
	if err != nil {
		return caGoal{}, err
	}
	if now.live() {
		return caGoal{issues: now.ref()}, nil
	}
	for _, i := range slices.Backward(all) {
		if i.live() {
			return caGoal{issues: i.ref()}, nil
		}
	}
	return caGoal{}, noCA(errAbsent, "a CA that may issue certificates")
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

// retireCA ends the issuing of a CA. The API then rejects its certificates with issuer_retired, and
// their nodes recover.
func (r *Rotator) retireCA(ctx context.Context, i caIssuer) error {
	if !i.live() {
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
