package wire

// Headers of both APIs.
const (
	// HeaderCorrelationID names the request in logs, the workflow, the task and
	// the agent's log. The server generates one if the request has none, and
	// returns it.
	HeaderCorrelationID = "X-Correlation-Id"
)

// Headers of the node API.
const (
	// HeaderVerifierSet names the newest verifier set in the form of
	// trust.VerifierSetRef.String. Every response to a poll has it while there is
	// a set.
	HeaderVerifierSet = "Gpuaas-Verifier-Set"
	// HeaderAuditCheckpoint carries the newest checkpoint of the audit trail, as text. Every
	// response to a poll has it while there is one. The agent keeps the one with the
	// greatest number, and its polls carry it.
	HeaderAuditCheckpoint = "Gpuaas-Audit-Checkpoint"
	// HeaderReplaceCheckpoint is "true" in the response to a poll whose checkpoint no key
	// signed: the agent keeps that of HeaderAuditCheckpoint instead, whatever its number.
	HeaderReplaceCheckpoint = "Gpuaas-Replace-Checkpoint"
	// HeaderCanceledTasks lists, separated by commas, the held tasks of a poll
	// that were canceled or voided while the poll was open. The agent sends a
	// progress call for each at once. It comes with a 204 response to a poll.
	HeaderCanceledTasks = "Gpuaas-Canceled-Tasks"
	// HeaderRemoval carries the DSSE envelope of a trust.Removal in unpadded base64url.
	// It comes with the error node_removed, if the removal was signed.
	HeaderRemoval = "Gpuaas-Removal"
	// HeaderResultSignature carries the signature of a task result in unpadded
	// base64url: ECDSA with SHA-256 in ASN.1 form, by the key of the node's
	// certificate, over the DSSE pre-authentication encoding of
	// trust.ResultPayloadType and the request body as sent.
	HeaderResultSignature = "Gpuaas-Result-Signature"
)
