// Package daemon is the frame of every long-running program of the project: its
// arguments and configuration, its metrics listener with /livez, /readyz and
// /metrics, the goroutines it runs, and how it starts and stops.
//
// A program is a Program value. Its Start opens the program's parts and starts
// its goroutines through a Process. Start at Main.
package daemon
