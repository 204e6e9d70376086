// Package command runs programs with bounded output and without the agent's own
// environment.
package command
