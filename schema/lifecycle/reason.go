package lifecycle

import (
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// ParkReason is a reason for which an operation parks: the code in Stuck.Reason.
type ParkReason struct {
	Reason string
	// Means and Next describe the cause and the next step in one sentence each.
	Means, Next string
}

// The reasons that are not the kind of an error.
const (
	ReasonTimeout        = "timeout"
	ReasonProviderSilent = "provider_silent"
	ReasonDrainBlocked   = "drain_blocked"
	// ReasonGPUsInUse: processes that no workload driver stops use the node's GPUs.
	ReasonGPUsInUse = "gpus_in_use"
	// ReasonWorkloadsUnknown: the agent cannot list all workloads of the node.
	ReasonWorkloadsUnknown = "workloads_unknown"
	// ReasonLastServer: the node runs the only control plane of a cluster.
	ReasonLastServer  = "last_server"
	ReasonProbeFailed = "probe_failed"
	// ReasonApproval: the policy, or the operator that started the repair, asks for an approval before the next rung of a repair.
	ReasonApproval = "approval"
	// ReasonNotCured: the node did not pass its tests after the last rung of a repair.
	ReasonNotCured = "not_cured"
	// ReasonNoPower: neither the agent nor a provider can restart the node.
	ReasonNoPower         = "no_power_control"
	ReasonSKUMismatch     = "sku_mismatch"
	ReasonStepUnknown     = "step_unknown"
	ReasonProviderUnknown = "provider_unknown"
	// ReasonMachineSilent: the agent of a new machine has not polled.
	ReasonMachineSilent = "machine_silent"
	ReasonTaskLost      = "task_lost"      // a destructive task outlived its lease; an operator decides
	ReasonTaskCanceled  = "task_cancelled" // an operator canceled the task
	// ReasonRecordUnavailable: the operation waits until the database accepts its record.
	ReasonRecordUnavailable = "record_unavailable"
	ReasonVaultSealed       = "vault_sealed"
	ReasonVaultUnreachable  = "vault_unreachable"
	// ReasonNodeAPIDown: no replica of the node API receives heartbeats.
	ReasonNodeAPIDown = "node_api_down"
	// ReasonClockSkew: the clocks of machines of the control plane differ too much to sign.
	ReasonClockSkew = "clock_skew"
	// ReasonSeqReplayed: the node refused a task whose sequence is not above that of its
	// last one, so it has not run it.
	ReasonSeqReplayed = "replayed_seq"
	// ReasonUpgradeRolledBack: the release made no successful poll, and the agent returned to
	// the one before. ReasonReleaseRejected: the agent did not try the release. The message of
	// the node's result starts with either.
	ReasonUpgradeRolledBack = "upgrade_rolled_back"
	ReasonReleaseRejected   = "release_rejected"
	// ReasonOtherBoot: the node has restarted already. The message of the node's result starts with it.
	// It is no reason of a park.
	ReasonOtherBoot     = "other_boot"
	ReasonResultMissing = "result_missing" // the activity ended and the database has no result
)

// The reasons of errors that other packages compare. They are no reasons of a park.
const (
	// ReasonRunOpen: a run with the operation's workflow ID is open. The record of that run's
	// operation may be over or missing.
	ReasonRunOpen = "run_open"
	// ReasonOperationOver: the operation has ended, so it takes no write and no decision.
	ReasonOperationOver = "operation_over"
	// ReasonUndoBegan: another run of the operation has begun its undo, so only the undo
	// continues.
	ReasonUndoBegan = "undo_began"
	// ReasonNotAbandoned: the node has an open operation, and it is not abandoned.
	ReasonNotAbandoned = "not_abandoned"
	// ReasonRunsMissing: Temporal does not have the runs of most open operations.
	ReasonRunsMissing = "runs_missing"
	// ReasonNoWorker: Temporal accepted the request, and no worker responded in time. An operation starts
	// later; a decision is not stored.
	ReasonNoWorker = "no_worker"
	// ReasonClaimPending: Temporal accepted the operation, and the database did not respond to its claim.
	ReasonClaimPending = "database_unavailable"
	// ReasonResponseLost: Temporal accepted the operation, and the response was lost: that of Temporal, or
	// the read of the node after it failed.
	ReasonResponseLost = "response_lost"
	// ReasonTemporalUnreachable: Temporal did not respond to a call.
	ReasonTemporalUnreachable = "temporal_unreachable"
)

// StartAccepted reports whether Temporal accepted an operation whose start failed for the reason. The
// operation continues without the caller.
func StartAccepted(reason string) bool {
	return slices.Contains([]string{ReasonNoWorker, ReasonClaimPending, ReasonResponseLost}, reason)
}

// MaybeAccepted reports whether a request that failed with KindServiceUnavailable for the reason may have been
// accepted, because a service did not respond to it. Without a reason, that is not excluded. With another
// reason, a service rejected the request, or StartAccepted applies.
func MaybeAccepted(reason string) bool {
	return slices.Contains([]string{"", ReasonTimeout, ReasonTemporalUnreachable}, reason)
}

// ParkReasons lists the reasons for which an operation parks, and those of abandoned
// operations.
func ParkReasons() []ParkReason {
	return append([]ParkReason{
		{string(schema.KindAgentSilent), "The node's agent did not respond before the phase's budget ended, or it sends no heartbeats.",
			"Check gpuaas node show for a fault that the agent reports, and the agent and its network on the node (journalctl -u gpuaas-node-agent), then retry."},
		{schema.ReasonNodeLocked, "The node's identity is locked, so the node receives no tasks. The message says since when and why.",
			"Unlock the identity, or reissue the enrollment. Cancel an open drain or retire before a reissue: the cancel does not wait for the node, which stays cordoned."},
		{ReasonProviderSilent, "The provider did not respond before the phase's budget ended.", "Check the provider's API and quota, then retry."},
		{ReasonTimeout, "A phase that waits for an operator was not done before its budget ended.", "Do what the phase waits for, then retry."},
		{ReasonDrainBlocked, "Workloads did not end before the drain's deadline. The message names them.",
			"End the workloads or extend the deadline. Force kills them."},
		{ReasonGPUsInUse, "Processes use the node's GPUs, and no workload driver stops them. The message names them with their process IDs.",
			"End the processes on the node, then retry. Force continues although they run."},
		{ReasonWorkloadsUnknown, "The agent cannot list the node's workloads: no workload driver is configured, the driver cannot list them because Docker, systemd or the Kubernetes API server does not respond, or nvidia-smi fails.",
			"Set GPUAAS_WORKLOAD_DRIVER in the node's env file (none if the node runs no workloads) and restart the agent, or repair what does not respond or the GPU driver, then retry. Force continues without the list."},
		{ReasonLastServer, "The node runs the only control plane of its Kubernetes cluster that is ready, or it is unknown whether another one is. No pod was evicted.",
			"Add a second server to the cluster, then retry. To end the cluster with the node, cancel and terminate the node, or force."},
		{string(schema.KindNodeInUse), "The node that is being retired runs workloads, which the agent listed after the cordon. The message names them.",
			"Cancel the operation and drain the node (gpuaas node retire NODE --drain), or end the workloads, then retry."},
		{ReasonProbeFailed, "A health check failed. The message names it.", "Repair the node, then retry. Force accepts the node as it is."},
		{ReasonApproval, "The policy, or the operator that started the repair, asks for an approval before the next rung. The phase names the rung.",
			"Read the fault (gpuaas node show), then retry, which approves, or skip, which refuses and continues with the next rung."},
		{ReasonNotCured, "The node did not pass its tests after the last rung of a repair. The message names the tests.",
			"Repair the node by hand, then retry. Skip ends the repair with the node quarantined. Force accepts the node as it is."},
		{ReasonNoPower, "The agent does not restart the node, and no provider has its machine.",
			"Restart the node by hand, for example at its BMC, then retry."},
		{ReasonSKUMismatch, "The machine does not match its registered SKU. The message lists the differences.",
			"Correct the machine or the number of GPUs (gpuaas node set --gpus), then retry. Force accepts the machine as it is. The SKU of an enrolled node cannot be changed: cancel the operation, retire and remove the node, and register the host again."},
		{ReasonTaskLost, "The node lost power or network, or its agent ended, while it ran a task that must not run twice unnoticed.",
			"Inspect the node. Resume dispatches the same task again; retry enqueues a new one."},
		{ReasonTaskCanceled, "An operator canceled the phase's task.", "Retry to run the phase again, or cancel the operation."},
		{ReasonResultMissing, "Temporal reports that the node's task ended, but the database has no result of it: someone completed the activity by hand, or the database was restored.",
			"Find in the Temporal history who completed the activity, then retry."},
		{string(schema.KindTaskFailed), "The node ran the task, and the task failed.",
			"Read the task's output with gpuaas task show, correct the cause, then retry."},
		{string(schema.KindTaskRefused), "The agent rejected the task, for example because its signature, identity or time window was not valid.",
			"Read the agent's log on the node, correct the cause (often the clock or the verifier set), then retry."},
		{ReasonSeqReplayed, "The agent rejected the task several times because its sequence is not above that of an earlier task, as after a restore of the database.",
			"If the agent's polls report the counters (nodes.floors_raised in gpuaas audit --node NODE), retry. Otherwise upgrade the agent."},
		{ReasonUpgradeRolledBack, "The new release of the agent did not work on the node: it crashed, or made no successful poll. The agent before it runs again.",
			"Read the message and the agent's log on the node. Cancel, or retry if the cause was outside the release."},
		{ReasonReleaseRejected, "The agent did not accept the release: no release key of the node signed it, it is older than the agent, or it does not run on the node. Nothing was changed.",
			"Correct what the message names, then start the upgrade again."},
		{string(schema.KindServiceUnavailable), "A service of the control plane did not respond: the database, Vault or Temporal.",
			"Check gpuaas-worker's /readyz and the service, then retry."},
		{ReasonVaultSealed, "Vault is sealed, so no task can be signed. The phase is retried.", "Unseal Vault. The operation then continues without a decision."},
		{ReasonVaultUnreachable, "Vault did not respond, so no task can be signed. The phase is retried.",
			"Check Vault and its network. The operation then continues without a decision."},
		{ReasonNodeAPIDown, "No replica of the node API receives heartbeats, so it is not known whether the node is connected or has restarted. The phase is retried.",
			"Start the node API, or repair its network. The operation then continues without a decision."},
		{ReasonClockSkew, "The worker's clock differs from the database's by more than 30 s, so no task is signed. The phase is retried.",
			"Correct the clock that is wrong (timedatectl on both machines). The operation then continues without a decision."},
		{ReasonRecordUnavailable, "The database does not accept the operation's record. The write is repeated until it succeeds.",
			"Check Postgres and gpuaas-worker's /readyz. The operation then continues without a decision."},
		{string(schema.KindInvalidRequest), "The provider rejected the request.", "Correct what the message names, then retry."},
		{ReasonProviderUnknown, "The workers that run have no adapter for the node's provider.",
			"Start a worker that has the provider. The operation then continues without a decision."},
		{ReasonMachineSilent, "A new machine did not enroll before the phase's budget ended. The likely cause has the state of the machine and the end of its console.",
			"Read the console. If the machine boots late, the operation continues without a decision; otherwise cancel, which deletes the machine."},
		{ReasonStepUnknown, "The worker's version does not have the phase.", "Start a worker of the version that started the operation, then retry."},
		{string(schema.KindInternal), "An unexpected failure in the control plane. Its cause is in the worker's log.",
			"Find the operation's ID in the worker's log, correct the cause, then retry."},
	}, append(machineReasons(), abandonReasons()...)...)
}

// machineReasons are the reasons for which a provider's call fails.
func machineReasons() (reasons []ParkReason) {
	for _, p := range machine.Problems() {
		reasons = append(reasons, ParkReason{p.Reason, p.Means, p.Next})
	}
	return reasons
}

// abandonReasons are the reasons of abandoned operations.
func abandonReasons() (reasons []ParkReason) {
	for _, r := range runEnds {
		reasons = append(reasons, ParkReason{string(r.end),
			"The operation is abandoned: its workflow run " + r.means + ". Likely cause: " + r.cause + ".",
			"Run " + RehydrateCommand("NODE") + ", which records the operation as failed, or start the action again."})
	}
	return reasons
}
