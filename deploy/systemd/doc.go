// Package systemd holds hardened units of gpuaas-api and gpuaas-worker for machines on
// which systemd runs them. The unit of the node agent is part of its install package.
package systemd
