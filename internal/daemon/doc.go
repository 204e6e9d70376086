// Package daemon implements the parts that all long-running programs share: arguments
// and configuration, a metrics listener with /livez, /readyz and /metrics, goroutines,
// start and stop.
//
// A program is a Program value. Its Start opens the program's parts and starts
// its goroutines through a Process. Start at Main.
package daemon
