// Package dev runs the whole stack on one machine: Postgres, Vault, Temporal
// with its Web UI, the worker, the API and any number of node agents, as real
// processes with their state in one folder.
//
// It starts programs, probes their ports and remembers which pids are its own;
// it links no driver and no client of what it runs. Start reading at up.go; a
// part is described in part.go, each one in the file of its name.
package dev
