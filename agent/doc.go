// Package agent is the program that runs on every node. It creates its own key,
// enrolls with a one-time token, long-polls the node API over mutual TLS, verifies
// that each task is signed, fresh and for this node, journals it, runs it with one
// of a closed list of executors and reports the result until the server has it. It
// renews its certificate in time, and recovers one when it could not.
//
// Of this project it imports only schema, so that its binary stays small, and it
// connects to nothing but the node API, and to the API server of its cluster with the driver
// kubernetes.
//
// This package is the loop and the wiring. The packages below it do not import each
// other:
//
//	identity   the certificate: enrollment, renewal, recovery, storage
//	verify     which offered tasks are accepted, by which keys and time
//	runner     the journal, execution, progress and results
//	workload   drivers and their monitor, cordon and drain
//	host       facts, GPUs and the health probe
//	nodeapi    the HTTP client and the server's time
//
// Start reading at agent.go (wiring) and poll.go (the loop); executors.go lists the
// task types.
//
// # As a library
//
// Many agents may run in one process; there is no package state. A caller that
// controls time, such as a fault test or a simulated fleet, makes agents with New
// and drives them with RunOnce:
//
//	a, err := agent.New(conf, agent.Deps{
//		FS:          faults,             // fails or stops at a chosen step
//		Clock:       clock,              // jumps
//		Transport:   wire,               // loses answers
//		PollTimeout: time.Millisecond,   // a poll does not wait
//		Workloads:   workload.Unmanaged{},
//	})
//	out, err := a.RunOnce(ctx)          // one pass of the identity manager, one poll
//
// ReconcileIdentity is the manager's pass alone.
// Outcome.Wait is how long the identity needs nothing; a caller advances its clock by
// it. A crash is Close without more, at any time when no call is under way, or inside
// one when an FS or Transport ends it by a panic that the caller recovers; New with
// the same Config is the restart. Wait waits for the accepted tasks. Everything that
// outlives a process is in Config.StateDir, at CertPath and KeyPath, and in EnvFile.
// Certificate returns the identity in use.
package agent
