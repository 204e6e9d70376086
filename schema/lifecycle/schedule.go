package lifecycle

import "time"

// Timings of the scheduled workflows. A run does its work in rounds, so that the runs
// do not hide the operations in the Web UI's list.
const (
	// RoundInterval is the time between two rounds, and the interval of the schedules:
	// the next run starts at most one interval after the previous one closed.
	RoundInterval = 30 * time.Second
	// Rounds is the number of rounds of a run that has no slow round.
	Rounds = 8
	// RoundTry bounds one try of a round.
	RoundTry = time.Minute
	// RoundTimeout bounds one round with its retries.
	RoundTimeout = 2 * time.Minute
	// roundsTimeout ends a run that hangs, so that it does not block the next ones. No
	// round starts later than Rounds*RoundInterval after the run's start.
	roundsTimeout = Rounds*RoundInterval + RoundTimeout + time.Minute
)

// The types of the scheduled workflows.
const (
	WorkflowReclaim = "ReclaimStaleDispatch"
	WorkflowWatch   = "WatchOperations"
	WorkflowTrust   = "MaintainTrust"
	WorkflowDelete  = "DeleteOldRecords"
	WorkflowSweep   = "SweepMachines"
	WorkflowDrift   = "ScanDrift"
	WorkflowExplain = "ExplainParks"
	WorkflowDecide  = "DecideRepairs"
)

// The IDs of the schedules.
const (
	ScheduleReclaim = "reclaim-stale-dispatch"
	ScheduleWatch   = "watch-operations"
	ScheduleTrust   = "maintain-trust"
	ScheduleDelete  = "delete-old-records"
	ScheduleSweep   = "sweep-machines"
	ScheduleDrift   = "scan-drift"
	ScheduleExplain = "explain-parks"
	ScheduleDecide  = "decide-repairs"
)

// TrustInterval is the time between two runs of MaintainTrust.
const TrustInterval = time.Hour

// DeleteInterval is the time between two runs of DeleteOldRecords.
const DeleteInterval = time.Hour

// DriftInterval is the time between two runs of ScanDrift.
const DriftInterval = 10 * time.Minute

// Timings of SweepMachines, whose run is one round: it calls providers, which takes longer than a
// round of the other schedules.
const (
	// SweepInterval is the time between two runs.
	SweepInterval = 10 * time.Minute
	// SweepTry bounds one try of the round, and SweepTimeout the round with its retries.
	SweepTry     = 3 * time.Minute
	SweepTimeout = 5 * time.Minute
)

// TrustQueue is the task queue of the activities that use the root key. Only workers with
// the rotator's login poll it.
const TrustQueue = "gpuaas-trust"

// WorkflowRotation is the type of the workflow that drives a rotation, and SignalRotation
// the signal that makes it look at the rotation now.
const (
	WorkflowRotation = "RotateKeys"
	SignalRotation   = "rotation_changed"
)

// Schedule is a schedule that Setup creates. Its runs never overlap.
type Schedule struct {
	// ID is the schedule's ID.
	ID string
	// Workflow is the type of its workflow.
	Workflow string
	// WorkflowID is the workflow ID of its runs, to which Temporal adds the start time.
	WorkflowID string
	// Every is the interval at which a run starts unless one is open.
	Every time.Duration
	// RunTimeout bounds a run.
	RunTimeout time.Duration
	// Does is what a run does, in the imperative: the summary of its runs in the Web UI.
	Does string
}

// StalledAfter is the time after the start of its last run at which the schedule
// counts as stalled: three intervals after the latest end of that run.
func (s Schedule) StalledAfter() time.Duration { return s.RunTimeout + 3*s.Every }

// Schedules returns every schedule.
func Schedules() []Schedule {
	return []Schedule{
		rounds(ScheduleReclaim, WorkflowReclaim, "Reclaim stale tasks"),
		rounds(ScheduleWatch, WorkflowWatch, "Find operations whose run ended"),
		rounds(ScheduleDecide, WorkflowDecide, "Decide about nodes with a fault, and start their repairs"),
		{ID: ScheduleTrust, Workflow: WorkflowTrust, WorkflowID: "fleet:" + ScheduleTrust + ":schedule", Every: TrustInterval,
			RunTimeout: roundsTimeout, Does: "Renew the verifier set"},
		{ID: ScheduleDelete, Workflow: WorkflowDelete, WorkflowID: "fleet:" + ScheduleDelete + ":schedule", Every: DeleteInterval,
			RunTimeout: roundsTimeout, Does: "Delete old records"},
		{ID: ScheduleSweep, Workflow: WorkflowSweep, WorkflowID: "fleet:" + ScheduleSweep + ":schedule", Every: SweepInterval,
			RunTimeout: roundsTimeout, Does: "Find machines that no instance owns"},
		{ID: ScheduleDrift, Workflow: WorkflowDrift, WorkflowID: "fleet:" + ScheduleDrift + ":schedule", Every: DriftInterval,
			RunTimeout: roundsTimeout, Does: "Compare nodes with their templates"},
		rounds(ScheduleExplain, WorkflowExplain, "Find the probable cause of each park"),
	}
}

func rounds(id, workflow, does string) Schedule {
	return Schedule{
		ID: id, Workflow: workflow, WorkflowID: "fleet:" + id + ":schedule",
		Every: RoundInterval, RunTimeout: roundsTimeout, Does: does,
	}
}
