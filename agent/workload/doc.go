// Package workload lists and stops the work of a node: the drivers for systemd and
// Docker, the cordon, and the drain that stops all workloads by a deadline.
package workload
