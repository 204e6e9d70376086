// Package agent is the program that runs on every node. It makes its own key,
// enrols with a one-time token, long-polls the node API over mutual TLS, checks
// the signature of each task, journals it, runs it with one of a closed list of
// executors and reports the result until the server has it. It renews its
// certificate in time and comes back by itself when it could not.
//
// It imports of this project only schema, so that its binary stays small, and
// speaks to nothing but the node API.
//
// Reading order: agent.go (what runs), keeper.go (what an identity needs),
// enroll.go, renew.go, recover.go (how one is obtained), observe.go and
// verdict.go (what is learned from refusals), versions.go (how it is stored),
// poll.go (the loop), verify.go (what is accepted), tasks.go (accept, run,
// report), journal.go (what survives kill -9), drain.go and
// workload_process.go (what a drain stops).
//
// # As a library
//
// Many agents may live in one process; there is no package state. A caller who
// wants to decide when things happen, such as a fault harness or a simulated
// fleet, makes them with New and drives them with Step:
//
//	a, err := agent.New(conf, agent.Deps{
//		FS:          faults,             // fails or stops at the step it likes
//		Clock:       clock,              // jumps
//		Transport:   wire,               // loses answers
//		PollTimeout: time.Millisecond,   // a poll does not wait
//		Workloads:   agent.NoWorkloads(),
//	})
//	out, err := a.Step(ctx)             // one pass of the keeper, one poll
//
// Keep is the keeper's pass alone and Poll the poll alone. Outcome.Wait says
// how long a pass is to no purpose; a caller advances its clock by it. A crash
// is Close without more, at any time when no call is under way, or inside one
// when an FS or Transport ends it by a panic that the caller recovers; New on
// the same Config is the restart. Everything that outlives a process is in
// Config.StateDir, at CertPath and KeyPath, and in EnvFile. Certificate tells
// which identity is in use.
//
// The FS interface carries the identity, the flags and the journal. The lock of
// the state folder, the hints for the status command, the listing of the journal
// at a start and the reading of the trust bundles go to the operating system.
package agent
