package trust

// ResultPayloadType returns the DSSE payload type of a task's result. It contains
// the task ID, which the body does not, so that a result cannot be presented as
// the result of another task or as another kind of document.
func ResultPayloadType(taskID string) string {
	return "application/vnd.gpuaas.task-result.v1+json; task_id=" + taskID
}

// ResultProof proves to a third party that a node reported a result, even after
// the node's certificate has expired.
type ResultProof struct {
	// Serial is the serial of the certificate whose key signed the result.
	Serial string `json:"serial"`
	// Key is the certificate's public key, PKIX in DER. The certificate's row and
	// its audit event contain the hash of the key.
	Key []byte `json:"key"`
	// Body is the result exactly as the node sent it. Signature is the decoded
	// value of HeaderResultSignature.
	Body      []byte `json:"body"`
	Signature []byte `json:"signature"`
}
