// Package server is the gpuaas-api program: its configuration, the wiring of
// adapters to the ports of the node API and the admin API, and how it runs.
//
// Start at run.go. Only wire.go connects adapters to ports.
package server
