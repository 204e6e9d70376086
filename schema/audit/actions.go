package audit

import "github.com/gpuaas/gpuaas/schema/lifecycle"

// ActionInfo describes the events of one audit action.
type ActionInfo struct {
	Action string
	// When says when an event is written, in one or two sentences.
	When string
	// System is true for events of the system stream. All others are in the stream of their node.
	System bool
	// Target is what the field target of the event has.
	Target string
	// Detail lists the keys that the field detail may have. A key that ends in a star is a prefix.
	Detail []string
}

// The targets of events.
const (
	targetNode      = "node ID"
	targetTask      = "task ID"
	targetOperation = "operation ID"
	targetResource  = "resource ID"
	targetRotation  = "rotation ID"
	targetSKU       = "SKU"
	targetTemplate  = "template"
	targetBulkRun   = "bulk run ID"
)

// Infos describes every audit action, those of the lifecycle last.
func Infos() []ActionInfo {
	all := append(identityInfos(), taskInfos()...)
	all = append(append(all, nodeInfos()...), systemInfos()...)
	for _, p := range lifecycle.All() {
		all = append(all, lifecycleInfo(p))
	}
	return all
}

// Actions returns every audit action.
func Actions() []string {
	var all []string
	for _, i := range Infos() {
		all = append(all, i.Action)
	}
	return all
}

func identityInfos() []ActionInfo {
	claim := []string{"token_id", "path_node", "spki", "agent_version", "remote_addr"}
	// refused has the keys of a refusal that names no node: equal ones are one event.
	refused := []string{"requests", "first", "last"}
	recovery := append([]string{"sequence"}, claim...)
	return []ActionInfo{
		{TokenIssued, "The admin API issued an enrollment token, or refused to.", false, targetNode, []string{"token_id", "purpose", "from", "voided", "task_id"}},
		{TokenClaimed, "An agent claimed an enrollment token for the first time.", false, targetNode, append([]string{"purpose", "voided_serials", "unlocked"}, claim...)},
		{TokenRefused, "An enrollment was refused. Refusals without a known node are in the system stream, with the network as target.", false, targetNode,
			append(refused, claim...)},
		{IdentityIssued, "A node certificate was issued. It is not in use yet.", false, targetNode,
			[]string{"serial", "issuer", "spki", "token_id", "via", "sequence", "recovery_token_id"}},
		{IdentityActive, "A node used a new certificate for the first time, which replaces the one before.", false, targetNode, []string{"serial", "replaces", "token_id"}},
		{IdentityRefused, "A request with a node certificate was refused; at most once a minute per node and reason.", false, targetNode,
			append([]string{"serial", "uri", "agent_session", "newer_session", "poll_seq", "current_serial", "current_sequence", "claimed_spki"}, recovery...)},
		{RecoveryClaimed, "A node whose certificate had expired claimed its recovery token for the first time.", false, targetNode, recovery},
		{RecoveryRefused, "A recovery was refused. Refusals without a known node are in the system stream, with the network as target.", false, targetNode,
			append(refused, recovery...)},
		{RenewalClaimed, "A node began to renew its certificate, or the renewal was refused.", false, targetNode, []string{"serial", "spki", "sequence"}},
		{IdentityLocked, "The server locked an identity, because two machines use it.", false, targetNode,
			append([]string{"serial", "current_serial", "uri", "agent_session", "newer_session", "poll_seq", "current_sequence", "claimed_spki"}, recovery...)},
		{IdentityAlarm, "Two machines may use one identity. The reason names the evidence.", false, targetNode,
			append([]string{"serial", "agent_session", "newer_session", "poll_seq", "recent_sessions"}, claim...)},
		{IdentityAdopted, "In restore mode, a certificate that the database had lost was accepted, or refused.", false, targetNode,
			[]string{"serial", "spki", "not_before", "incarnation", "incarnation_on_record"}},
		{FetchIssued, "A one-time reference to a bootstrap bundle was issued, or refused.", false, targetNode, []string{"token_id", "bundle"}},
		{FetchUsed, "A one-time reference was used, or its use was refused.", false, targetNode, append([]string{"token_id", "bundle", "path_node", "remote_addr"}, refused...)},
		{FloorsRaised, "A node reported higher counters than the database has, as after a restore of the database.", false, targetNode,
			[]string{"task_seq", "task_seq_on_record", "identity_sequence", "identity_sequence_on_record"}},
	}
}

func taskInfos() []ActionInfo {
	return []ActionInfo{
		{TaskCreated, "A signed task was stored.", false, targetTask, []string{"type", "step"}},
		{TaskDispatched, "A task was sent to its node under a new lease.", false, targetTask, []string{"type", "lease", "holder"}},
		{TaskFinished, "A task ended, with its result. The reason is the error code of the node, or why the task was canceled.", false, targetTask,
			[]string{"type", "message", "serial", "was"}},
		{TaskLate, "A result came after its lease had ended, and was not used.", false, targetTask, []string{"type", "status", "signed", "ran", "code", "message", "task_status"}},
		{TaskMismatched, "A result is for another body than the signed one, and was not used.", false, targetTask, []string{"type", "status", "signed", "ran", "code", "message"}},
		{TaskRequeued, "The reclaimer made a task whose lease had expired ready for another dispatch.", false, targetTask, []string{"type"}},
		{TaskLost, "The reclaimer marked a destructive task as lost, because its lease expired and its outcome is unknown.", false, targetTask, []string{"type"}},
		{TaskReturned, "The node of a lost task reported its result after all.", false, targetTask, []string{"type", "was"}},
		{TaskRedelivered, "The reclaimer sent a result to its operation again.", false, targetTask, []string{"type"}},
		{TaskResume, "An operator ran gpuaas task resume.", false, targetTask, []string{"type"}},
		{TaskCancel, "An operator ran gpuaas task cancel, or a rotation canceled a task.", false, targetTask, []string{"type", "was"}},
	}
}

func nodeInfos() []ActionInfo {
	resource := []string{"kind", "provider", "external_id"}
	return []ActionInfo{
		{Decision, "An operator decided about a parked operation. The actor is who decided.", false, targetOperation, []string{"decision", "phase", "decision_id"}},
		{QuotaExceeded, "An operation parked because the quota at the provider is used up; once for each operation.", false, targetNode,
			[]string{"provider", "node", "region", "phase", "message"}},
		{NodeSet, "An operator changed a node's SKU, region, number of GPUs, workload driver or labels. Each value has the form OLD to NEW.", false, targetNode,
			[]string{"sku", "region", "workload_driver", "gpus_total", "labels"}},
		{NodeLock, "An operator locked the identity of a node.", false, targetNode, []string{"state", "voided", "lock"}},
		{NodeUnlock, "An operator unlocked the identity of a node, or dismissed an alarm.", false, targetNode, []string{"lock", "alarm"}},
		{NodeRehydrated, "An operator ended the abandoned operations of a node; one event for each operation, or one for the node's state.", false, targetNode,
			[]string{"requested_reason", "outcome", "from", "to"}},
		{InstanceChanged, "The instance of a node changed its state, or a repair replaced it.", false, targetNode, []string{"from", "to", "phase"}},
		{ResourcePlanned, "The ledger has an entry for a resource that will be created at a provider.", false, targetResource, resource},
		{ResourceCreated, "A resource was created at a provider.", false, targetResource, resource},
		{ResourceReleased, "A resource was released at its provider. For a surplus machine, the reason is its class.", false, targetResource, resource},
	}
}

func systemInfos() []ActionInfo {
	rotation := []string{"kind", "phase", "old_key", "new_key", "set_version", "outcome"}
	return []ActionInfo{
		{SetPublished, "A verifier set was published.", true, "hash of the set", []string{"version", "epoch"}},
		{RotationStarted, "An operator started a rotation or the revocation of a key.", true, targetRotation, rotation},
		{RotationChanged, "A phase of a rotation began, or its verifier set was published.", true, targetRotation, rotation},
		{RotationDecided, "An operator decided about a rotation. A decision to waive nodes is also in the streams of these nodes.", true, targetRotation,
			append([]string{"decision", "nodes"}, rotation...)},
		{RotationEnded, "A rotation ended.", true, targetRotation, rotation},
		{SKUAdded, "An operator added a SKU.", true, targetSKU, []string{"gpu_model", "max_gpus", "min_cpus", "min_memory_bytes", "workload_driver"}},
		{SKUDeactivated, "An operator deactivated a SKU.", true, targetSKU, nil},
		{TemplateSet, "An operator stored a template. Each value has the form OLD to NEW.", true, targetTemplate,
			[]string{"version", "skus", "classes", "managed", "policy", "artifact *"}},
		{TemplateDeleted, "An operator deleted a template.", true, targetTemplate, []string{"version"}},
		{PolicySet, "An operator stored a policy of health recovery.", true, "digest of the policy", []string{"version", "mode", "previous_digest"}},
		{BreakerClosed, "An operator closed the breaker of health recovery.", true, "breaker", []string{"open_since", "why"}},
		{BulkStopped, "An operator stopped a bulk run of the console, so it starts no further request.", true, targetBulkRun, []string{"run", "started_by", "requests", "sent"}},
		{RestoreStarted, "An operator started the restore mode.", true, "database", []string{"epoch", "tokens_voided", "for"}},
		{RestoreEnded, "An operator ended the restore mode.", true, "database", nil},
		{CheckpointMissing, "A node keeps a signed checkpoint of the audit trail that the database does not have.", true, targetNode, []string{"checkpoint"}},
		{CheckpointUnverified, "A node keeps a checkpoint that the checkpoint key did not sign.", true, targetNode, []string{"checkpoint"}},
		{GapAccepted, "An operator accepted that checkpoints are missing.", true, "system", []string{"checkpoints"}},
		{Archived, "A part of the audit trail was written to a file of the archive.", true, "system",
			[]string{"file", "sha256", "events", "after_checkpoint", "last_checkpoint"}},
	}
}

// lifecycleInfo describes the events of a lifecycle action.
func lifecycleInfo(p lifecycle.Plan) ActionInfo {
	i := ActionInfo{Action: ActionName(p.Action), Target: targetNode}
	switch {
	case p.Action == lifecycle.ActionRegister:
		i.When = "An operator registered a node, or the registration was refused. A refusal is in the system stream, with the host as target."
		i.Detail = []string{"host", "sku", "region", "onboarding_mode", "labels"}
	case p.Workflow == "":
		i.When, i.Detail = p.Does, []string{"from", "to"}
	default:
		i.When = "The operation " + string(p.Action) + " was accepted or refused, parked, or ended."
		i.Detail = []string{"requested_reason", "state", "from", "to", "op_seq", "instance", "instance_id", "phase", "message", "waiting_on", "park_id",
			"outcome", "by"}
	}
	return i
}
