package adminapi

import (
	"strings"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Bounds of a SKU, far above those of any machine.
const (
	maxGPUs        = 1024
	maxCPUs        = 1 << 16
	maxMemoryBytes = 1 << 50
)

// skus serves the SKU catalog.
type skus struct{ base }

// list lists the SKUs in order of name.
func (s skus) list(c *call) (any, error) {
	q := s.listQuery(c)
	of := SKUQuery{Page: q.page(1)}
	if q.values.Has("active") {
		of.Active = new(q.flag("active"))
	}
	return page(q, "skus", of, s.SKUs.ListSKUs)
}

// show returns one SKU.
func (s skus) show(c *call) (any, error) {
	name, err := skuName(c)
	if err != nil {
		return nil, err
	}
	return s.SKUs.SKU(c.Context(), name)
}

// skuName reads the name of a SKU from the path.
func skuName(c *call) (string, error) {
	name := c.PathValue("sku")
	if !validName(name, 64) {
		return "", schema.NewError(schema.KindNotFound, "no such SKU").WithNext("gpuaas sku list")
	}
	return name, nil
}

// add adds a SKU.
func (s skus) add(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkSKU)
	if err != nil {
		return nil, err
	}
	sku, err := s.SKUs.AddSKU(c.Context(), req, c.by)
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("Location", adminPath+"/skus/"+sku.Name)
	return sku, nil
}

// checkSKU rejects a SKU that no machine could match.
func checkSKU(n *inventory.NewSKU) error {
	switch {
	case !skuForm.MatchString(n.Name):
		return badField("name", "must be 1 to 64 of a-z A-Z 0-9 . _ - that begin with a letter or digit")
	case !text.IsLine(n.GPUModel, 64) || strings.TrimSpace(n.GPUModel) != n.GPUModel:
		return badField("gpu_model", "must be one line of at most 64 characters without spaces around it")
	case n.MaxGPUs < 0 || n.MaxGPUs > maxGPUs:
		return badField("max_gpus", "must be 0 to 1024")
	case n.GPUModel != "" && n.MaxGPUs == 0:
		return badField("max_gpus", "must be at least 1 for a SKU with a gpu_model")
	case n.MinCPUs < 1 || n.MinCPUs > maxCPUs:
		return badField("min_cpus", "must be 1 to 65536")
	case !validDriver(n.WorkloadDriver):
		return badDriver()
	case n.MinMemoryBytes < 0 || n.MinMemoryBytes > maxMemoryBytes:
		return badField("min_memory_bytes", "must be 0 to 2^50")
	}
	return checkReason(n.Reason, false)
}

// deactivate makes the catalog refuse new nodes of a SKU.
func (s skus) deactivate(c *call) (any, error) {
	req, err := body(c, edge.DecodeOptional, func(d *inventory.SKUDeactivation) error { return checkReason(d.Reason, false) })
	if err != nil {
		return nil, err
	}
	name, err := skuName(c)
	if err != nil {
		return nil, err
	}
	return s.SKUs.DeactivateSKU(c.Context(), name, req.Reason, c.by)
}
