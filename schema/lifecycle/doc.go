// Package lifecycle defines the states of nodes and instances, the actions that
// change them, the plan of each action, and the operations that run the plans.
package lifecycle
