// Package wait holds the agent's delays: backoff, jitter, and sleeps that end with
// a context.
package wait
