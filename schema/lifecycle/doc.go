// Package lifecycle holds the states of nodes and instances, the actions that
// move them, and the operations that carry the actions out.
package lifecycle
