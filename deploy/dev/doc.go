// Package dev runs the whole stack on one machine: Postgres, Vault, Temporal with
// its Web UI, the worker, the API and any number of node agents, as separate
// processes with their state in one folder.
//
// It starts programs, probes their ports and records their pids. It links no
// driver or client of the programs that it runs. Start reading at up.go. part.go
// describes a part; each part is in the file with its name.
package dev
