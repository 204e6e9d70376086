package adminapi

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultSSHPort = 22

	badSKU    = "must be a name of the SKU catalog"
	badRegion = "must be 1 to 64 of a-z A-Z 0-9 . _ -"
)

// nodes serves the inventory.
type nodes struct{ base }

// list lists nodes in order of host name.
func (n nodes) list(c *call) (any, error) {
	q := n.listQuery(c)
	of := NodeQuery{Page: q.page(2), States: words(q, "state", lifecycle.NodeStates()...), SKUs: words[string](q, "sku"),
		Regions: words[string](q, "region"), Providers: words[string](q, "provider"), Issuers: q.take("issuer"),
		HostPrefix: q.one("host_prefix"), HostPattern: q.one("host"), Selector: q.selector(), Removed: q.flag("removed"), View: viewOf(q)}
	for name, text := range map[string]string{"host_prefix": of.HostPrefix, "host": of.HostPattern} {
		if text != "" && !patternForm.MatchString(text) {
			q.fail(badField(name, "must be at most 253 of a-z A-Z 0-9 . - and for host also * and ?"))
		}
	}
	return page(q, "nodes", of, n.Nodes.ListNodes)
}

// summaryFields are the fields of a row without a field mask. The first nameFields
// of them need no other table.
var summaryFields = []string{"id", "host", "state", "state_since", "cordoned", "sku", "gpus_total", "region_code", "onboarding_mode", //nolint:gochecknoglobals // read-only table
	"lifecycle_class", "labels", "incarnation", "last_heartbeat_at", "agent_version", "identity_lock", "identity_alarm", "operation", "created_at"}

const nameFields = 3

// viewOf returns the smallest view that has the fields of the mask. Without a mask
// it sets that of the summary.
func viewOf(q *query) View {
	if len(q.fields) == 0 {
		q.fields = summaryFields
	}
	outside := func(view []string) bool {
		return slices.ContainsFunc(q.fields, func(f string) bool { return !slices.Contains(view, f) })
	}
	switch {
	case !outside(summaryFields[:nameFields]):
		return ViewName
	case !outside(summaryFields):
		return ViewSummary
	}
	return ViewFull
}

// show returns a node with the CA generations that the node API accepts, which
// reveals an identity whose issuer is not one of them. While they cannot be read,
// it returns the node without them.
func (n nodes) show(c *call) (any, error) {
	node, err := n.find(c)
	if err != nil {
		return nil, err
	}
	var cas []*x509.Certificate
	text, err := n.Trust.NodeCA(c.Context())
	if err == nil {
		cas, err = trust.ParseCertificates(text)
	}
	if err != nil {
		n.Log.Warn("showing a node without the node CAs", slog.Any("err", err))
	}
	for _, ca := range cas {
		node.TrustedCAs = append(node.TrustedCAs, trust.CertFactsOf(ca))
	}
	return node, nil
}

// register adds a node to the inventory.
func (n nodes) register(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkRegistration)
	if err != nil {
		return nil, err
	}
	ctx, id := c.Context(), lifecycle.NodeID(c.by.Actor, c.key)
	node, err := once(c.key, func() (wire.NodeView, error) { return n.registered(ctx, id, req) },
		func() (wire.NodeView, error) { return n.Nodes.Register(ctx, id, req, c.by) })
	if errors.Is(err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "host_taken"}) {
		err = withNext(err, "gpuaas node show "+req.Host)
	}
	if err != nil {
		return nil, err
	}
	edge.Annotate(ctx, slog.String("node_id", node.ID))
	c.w.Header().Set("Location", adminPath+"/nodes/"+node.ID)
	return node, nil
}

// registered returns the node that an earlier request with the key registered.
// KindNotFound if there is none, KindKeyInUse if that request differs.
func (n nodes) registered(ctx context.Context, id string, r wire.RegisterNodeRequest) (wire.NodeView, error) {
	v, err := n.Nodes.Node(ctx, id)
	if err != nil {
		return wire.NodeView{}, err
	}
	first := wire.RegisterNodeRequest{Host: v.Host, Port: v.Port, SSHUsername: v.SSHUsername, SSHPublicKey: v.SSHPublicKey, SKU: v.SKU,
		GPUsTotal: v.GPUsTotal, RegionCode: v.RegionCode, OnboardingMode: v.OnboardingMode, LifecycleClass: v.LifecycleClass,
		WorkloadDriver: v.WorkloadDriver, Labels: v.Labels, Probe: v.Probe}
	if r.GPUsTotal == 0 {
		first.GPUsTotal = 0
	}
	if r.WorkloadDriver == "" {
		first.WorkloadDriver = ""
	}
	if len(r.Labels)+len(v.Labels) == 0 {
		first.Labels = r.Labels
	}
	if !reflect.DeepEqual(first, r) {
		return wire.NodeView{}, keyInUse("it registered " + v.Host + " as node " + v.ID)
	}
	return v, nil
}

// checkRegistration rejects values that no node can have and sets the defaults.
// The store checks the SKU.
func checkRegistration(r *wire.RegisterNodeRequest) error {
	if r.Port == 0 {
		r.Port = defaultSSHPort
	}
	if r.OnboardingMode == "" {
		r.OnboardingMode = inventory.ProviderManual
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
		return badField("sku", badSKU)
	case !validName(r.RegionCode, 64):
		return badField("region_code", badRegion)
	case r.GPUsTotal < 0:
		return badField("gpus_total", "must not be negative")
	case !slices.Contains(classes, r.LifecycleClass):
		return badField("lifecycle_class", "must be one of "+joined(classes))
	case !validDriver(r.WorkloadDriver):
		return badDriver()
	case r.SSHUsername != "" && !validName(r.SSHUsername, 64):
		return badField("ssh_username", "must be at most 64 of a-z A-Z 0-9 . _ -")
	case len(r.SSHPublicKey) > 8<<10 || strings.ContainsAny(r.SSHPublicKey, "\r\n\x00"):
		return badField("ssh_public_key", "must be one line of at most 8 KiB")
	case strings.Contains(r.SSHPublicKey, "PRIVATE KEY"):
		return badField("ssh_public_key", "contains a private key")
	case !validName(r.OnboardingMode, 32):
		return badField("onboarding_mode", "must be the name of a provider")
	}
	return checkLabels(r.Labels)
}

// set changes the registered properties of a node.
func (n nodes) set(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkChange)
	if err != nil {
		return nil, err
	}
	node, err := n.find(c)
	if err != nil {
		return nil, err
	}
	return n.Nodes.SetNode(c.Context(), node.ID, req, c.by)
}

func checkChange(c *wire.NodeChange) error {
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
	case c.SKU != "" && !validName(c.SKU, 64):
		return badField("sku", badSKU)
	case c.RegionCode != "" && !validName(c.RegionCode, 64):
		return badField("region_code", badRegion)
	case c.GPUsTotal != nil && *c.GPUsTotal < 0:
		return badField("gpus_total", "must not be negative")
	case !validDriver(c.WorkloadDriver):
		return badDriver()
	case c.UnsetWorkloadDriver && c.WorkloadDriver != "":
		return badField("unset_workload_driver", "must not be true with workload_driver")
	case len(c.RemoveLabels) > maxLabels:
		return badField("remove_labels", "must be at most 64")
	case c.GPUsTotal == nil && c.SKU+c.RegionCode+c.WorkloadDriver == "" && !c.UnsetWorkloadDriver && len(c.Labels)+len(c.RemoveLabels) == 0:
		return schema.NewError(schema.KindInvalidRequest, "nothing to change: give sku, region_code, gpus_total, workload_driver, unset_workload_driver, labels or remove_labels").WithReason("empty_change")
	}
	return nil
}
