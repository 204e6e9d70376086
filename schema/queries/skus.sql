-- name: GetSKU :one
SELECT name, gpu_model, max_gpus, min_cpus, min_memory_bytes, workload_driver, active FROM skus WHERE name = $1;

-- name: NodeSKU :one
SELECT n.gpus_total, s.name, s.gpu_model, s.max_gpus, s.min_cpus, s.min_memory_bytes, s.workload_driver, s.active FROM nodes n JOIN skus s ON s.name = n.sku WHERE n.node_id = $1;

-- Adds a SKU, or activates an inactive one with the same content.
-- name: AddSKU :execrows
INSERT INTO skus (name, gpu_model, max_gpus, min_cpus, min_memory_bytes, workload_driver) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET active = true
WHERE NOT skus.active AND skus.gpu_model = excluded.gpu_model AND skus.max_gpus = excluded.max_gpus
  AND skus.min_cpus = excluded.min_cpus AND skus.min_memory_bytes = excluded.min_memory_bytes
  AND skus.workload_driver = excluded.workload_driver;

-- name: DeactivateSKU :execrows
UPDATE skus SET active = false WHERE name = $1 AND active;
