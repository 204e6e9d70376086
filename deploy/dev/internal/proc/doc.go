// Package proc reads the process table of this machine.
package proc
