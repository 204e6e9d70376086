// Package agent is the program that runs on every node. It makes its own key,
// enrols with a one-time token, long-polls the node API over mutual TLS, checks
// that each task is signed, fresh and for this node, journals it, runs it with
// one of a closed list of executors and reports the result until the server has
// it. It renews its certificate in time and comes back by itself when it could
// not.
//
// It imports of this project only schema, so that its binary stays small, and
// speaks to nothing but the node API.
//
// Reading order: agent.go (what runs), keeper.go (what an identity needs),
// enroll.go, renew.go, recover.go (how one is obtained), observe.go and
// verdict.go (what is learned from refusals), versions.go (how it is stored),
// poll.go (the loop), verify.go, grant.go and dsse.go (what is accepted), sets.go
// and trust.go (by which keys and time), tasks.go, run.go, progress.go and
// report.go (accept, run, report), journal.go (what survives kill -9),
// programs.go (what a task runs), drain.go and workload_process.go (what a drain
// stops).
//
// # What is accepted
//
// An answer to a poll holds three signed documents, and each is verified as
// bytes and then parsed once, strictly. The task, by an active or grace key of
// the verifier set: for this environment, node and incarnation, of a known type,
// with the params of its digest and a sequence above all before. The grant, by a
// key that the control plane delegates for a day: made for the nonce of this
// very poll and for this task, envelope and lease, with what the task expects of
// the node. The delegation, by an active or grace key. The time that counts is
// the latest that a verified grant told, carried on by a clock's progress: what
// the node's own clock shows has no part in it.
//
// Verifier sets follow one another: each names the hash of the one before and is
// signed by a root key and by the key that was active. The set in use is stored
// before it is used and never goes back, except to one of a higher epoch, which
// the root signs alone. A set whose time is over still serves reads and
// idempotent tasks.
//
// A refusal is KindTaskRefused with a reason and is reported to the server.
//
// # What survives
//
// A task is in the journal before its first effect, and its result, with a
// digest, before it is reported; where the disk is full at that moment, the
// result is reported from memory and stored as soon as there is room. After a
// crash a finished task is reported, a read or idempotent one runs again once
// the server said that it is still wanted, and a destructive one fails with an
// unknown outcome. Two destructive types are resumable: a drain, which remembers
// durably whom it asked, and a wipe, which begins when its result was taken.
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
// the same Config is the restart. Settle waits for the tasks taken. Everything that outlives a process is in
// Config.StateDir, at CertPath and KeyPath, and in EnvFile. Certificate tells
// which identity is in use.
//
// The FS interface carries the identity, the flags and the journal. The lock of
// the state folder, the hints for the status command, the listing of the journal
// at a start, the removal of tasks' working folders and the reading of the trust
// bundles go to the operating system.
package agent
