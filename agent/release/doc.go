// Package release replaces the agent's binary by a signed release and returns to the
// previous one if the release does not work.
//
// The installed binary is never changed. At each start it launches, in its own process, the
// release that must run: first one on trial, else the newest that worked. A release on trial
// has a few starts, and a few minutes in each, to make one successful poll; then it is kept.
// Otherwise the next start runs the previous binary. Whatever ends the process at whatever
// step, the next start finds the state before the step or the one after it, and both start a
// binary that works.
//
// Launch is the part of the installed binary, Upgrade that of the binary that runs.
package release
