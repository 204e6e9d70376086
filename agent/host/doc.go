// Package host reads facts of the machine: operating system, processors, memory,
// disks, network interfaces and GPUs, and whether the machine can run tasks.
package host
