// Package agent is the program that runs on every node. It makes its own key,
// enrols with a one-time token, long-polls the node API over mutual TLS, checks
// the signature of each task, journals it, runs it with one of a closed list of
// executors and reports the result until the server has it.
//
// It imports of this project only schema, so that its binary stays small, and
// speaks to nothing but the node API.
//
// Reading order: agent.go (what runs), enroll.go (identity), poll.go (the loop),
// verify.go (what is accepted), tasks.go (accept, run, report), journal.go (what
// survives kill -9), drain.go and workload_process.go (what a drain stops).
package agent
