package adminapi

import (
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultSSHPort = 22
	modeManual     = "manual"
)

// register adds a node to the inventory.
func (a *API) register(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
	var req wire.RegisterNodeRequest
	if err := edge.Decode(w, r, &req); err != nil {
		return err
	}
	if err := checkRegistration(&req); err != nil {
		return err
	}
	return a.once(r, "nodes", by, func(nodeID string) error {
		var node wire.NodeView
		var err error
		if nodeID != "" { // registered by the first use of the key
			node, err = a.cfg.Views.Node(r.Context(), nodeID)
		} else if node, err = a.cfg.Store.Register(r.Context(), req, by); err == nil {
			err = a.keep(r, "nodes", node.ID)
		}
		if err != nil {
			return err
		}
		edge.Annotate(r.Context(), slog.String("node_id", node.ID))
		w.Header().Set("Location", adminPath+"/nodes/"+node.ID)
		return edge.JSON(w, http.StatusCreated, node)
	})
}

// keep stores the result of the first use of the request's idempotency key.
func (a *API) keep(r *http.Request, scope, result string) error {
	key := r.Header.Get(wire.HeaderIdempotencyKey)
	if key == "" {
		return nil
	}
	return a.cfg.Views.KeepResult(r.Context(), scope, key, result)
}

// checkRegistration refuses what no node can have and fills in the defaults. The
// store checks the SKU.
func checkRegistration(r *wire.RegisterNodeRequest) error {
	if r.Port == 0 {
		r.Port = defaultSSHPort
	}
	if r.OnboardingMode == "" {
		r.OnboardingMode = modeManual
	}
	if r.LifecycleClass == "" {
		r.LifecycleClass = inventory.ClassPersistent
	}
	classes := []inventory.Class{inventory.ClassPersistent, inventory.ClassEphemeral, inventory.ClassSpot}
	switch {
	case !validHost(r.Host):
		return badField("host", "must be a host name or an IP address")
	case r.Port < 1 || r.Port > 65535:
		return badField("port", "must be 1 to 65535")
	case !validName(r.SKU, 64):
		return badField("sku", "is needed: a name of the SKU catalog")
	case !validName(r.RegionCode, 64):
		return badField("region_code", "is needed: at most 64 of a-z A-Z 0-9 . _ -")
	case r.GPUsTotal < 0:
		return badField("gpus_total", "must not be negative")
	case checkLabels(r.Labels) != nil:
		return checkLabels(r.Labels)
	case !slices.Contains(classes, r.LifecycleClass):
		return badField("lifecycle_class", "must be persistent, ephemeral or spot")
	case r.SSHUsername != "" && !validName(r.SSHUsername, 64):
		return badField("ssh_username", "must be at most 64 of a-z A-Z 0-9 . _ -")
	case len(r.SSHPublicKey) > 8<<10 || strings.ContainsAny(r.SSHPublicKey, "\r\n\x00"):
		return badField("ssh_public_key", "must be one line of at most 8 KiB")
	case strings.Contains(r.SSHPublicKey, "PRIVATE KEY"):
		return badField("ssh_public_key", "holds a private key")
	case !validName(r.OnboardingMode, 32):
		return badField("onboarding_mode", "must be the name of a provider")
	case r.OnboardingMode != modeManual:
		return schema.NewError(schema.KindServiceUnavailable, "no adapter for onboarding mode %q is configured", r.OnboardingMode).
			WithReason("no_adapter").WithNext("register the node with onboarding_mode manual")
	}
	return nil
}

func badField(field, why string) error {
	return schema.NewError(schema.KindInvalidRequest, "%s %s", field, why).WithReason("bad_" + field)
}

// validHost takes an IP address or a DNS name.
func validHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !validName(label, 63) || strings.ContainsAny(label, "._") || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// validName takes 1 to most characters of a-z A-Z 0-9 . _ -
func validName(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// setNode changes what was registered of a node.
func (a *API) setNode(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
	var req wire.NodeChange
	if err := edge.Decode(w, r, &req); err != nil {
		return err
	}
	if err := checkChange(req); err != nil {
		return err
	}
	node, err := a.find(r)
	if err != nil {
		return err
	}
	if node, err = a.cfg.Views.SetNode(r.Context(), node.ID, req, by); err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, node)
}

func checkChange(c wire.NodeChange) error {
	if err := checkReason(c.Reason, false); err != nil {
		return err
	}
	if err := checkLabels(c.Labels); err != nil {
		return err
	}
	for _, key := range c.RemoveLabels {
		if err := checkLabelKey(key); err != nil {
			return err
		}
		if _, both := c.Labels[key]; both {
			return badField("remove_labels", "must not name a label that is set")
		}
	}
	switch {
	case c.GPUsTotal != nil && *c.GPUsTotal < 0:
		return badField("gpus_total", "must not be negative")
	case len(c.RemoveLabels) > maxLabels:
		return badField("remove_labels", "must be at most 64")
	case c.GPUsTotal == nil && len(c.Labels)+len(c.RemoveLabels) == 0:
		return schema.NewError(schema.KindInvalidRequest, "nothing to change: give gpus_total, labels or remove_labels").WithReason("empty_change")
	}
	return nil
}

// node shows a node with the CA generations that its identity is checked against,
// so that an issuer outside of them can be seen here. While they cannot be read
// the node is shown without them.
func (a *API) node(w http.ResponseWriter, r *http.Request, _ audit.Subject) error {
	node, err := a.find(r)
	if err != nil {
		return err
	}
	if text, err := a.cfg.Trust.NodeCA(r.Context()); err != nil {
		a.cfg.Log.Warn("showing a node without the node CAs", slog.Any("err", err))
	} else {
		node.TrustedCAs = caFacts(text)
	}
	return edge.JSON(w, http.StatusOK, node)
}

// caFacts renders the certificates of a PEM bundle.
func caFacts(bundle string) []trust.CAFacts {
	var out []trust.CAFacts
	for rest := []byte(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // Vault's own certificates parse
		}
		f := trust.CertFactsOf(cert)
		out = append(out, trust.CAFacts{Subject: f.Subject, Issuer: f.Issuer, Fingerprint: f.Fingerprint,
			NotBefore: f.NotBefore, NotAfter: f.NotAfter})
	}
}

// find reads the node that the path names by id or host name.
func (a *API) find(r *http.Request) (wire.NodeView, error) {
	name := r.PathValue("node")
	if !schema.IsID(name) && !validHost(name) {
		return wire.NodeView{}, schema.Errorf(schema.KindNotFound, "no such node")
	}
	node, err := a.cfg.Views.Node(r.Context(), name)
	if err != nil {
		return wire.NodeView{}, err
	}
	edge.Annotate(r.Context(), slog.String("node_id", node.ID))
	return node, nil
}
