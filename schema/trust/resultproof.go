package trust

// ResultPayloadType is the DSSE payload type of the result of a task. It names
// the task, which the body does not, so that no result passes for that of another
// task or for another kind of document.
func ResultPayloadType(taskID string) string {
	return "application/vnd.gpuaas.task-result.v1+json; task_id=" + taskID
}

// ResultProof is what proves to a third party that a node reported a result, long
// after the certificate's end.
type ResultProof struct {
	// Serial is that of the certificate whose key signed.
	Serial string `json:"serial"`
	// Key is the certificate's public key, PKIX in DER. The certificate's row and
	// its audit event have the key's hash.
	Key []byte `json:"key"`
	// Body is the result as the node sent it, byte by byte, and Signature what
	// HeaderResultSignature carried, decoded.
	Body      []byte `json:"body"`
	Signature []byte `json:"signature"`
}
