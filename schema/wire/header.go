package wire

// HeaderResultSignature carries the signature of a task's result: in base64url
// without padding, ECDSA with SHA-256 in its ASN.1 form, by the key of the node's
// certificate, of the DSSE pre-authentication encoding of ResultPayloadType and
// of the request's body as it is sent.
const HeaderResultSignature = "Gpuaas-Result-Signature"
