# An SKU, the nodes of a rack that have it, and those of them that are active.
terraform {
  required_providers {
    gpuaas = { source = "gpuaas/gpuaas" }
  }
}

provider "gpuaas" {
  address = "https://gpuaas.example.com" # the token is in GPUAAS_API_TOKEN
}

resource "gpuaas_sku" "b300" {
  name      = "b300"
  gpu_model = "B300"
  max_gpus  = 8
  min_cpus  = 64
}

resource "gpuaas_node" "rack7" {
  for_each = toset(["gpu-17", "gpu-18"])
  host     = each.key
  sku      = gpuaas_sku.b300.name
  region   = "fra1"
  labels   = { rack = "r7" }
}

data "gpuaas_nodes" "active" {
  selector = "rack=r7,state=active"
}
