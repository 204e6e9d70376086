// Package client is the Go client of the admin API.
//
//	c, err := client.New("https://gpuaas.example.com", client.WithTokenFile("/run/secrets/gpuaas-token"))
//	if err != nil {
//		return err
//	}
//	started, err := c.Start(ctx, "gpu-17", lifecycle.ActionDrain, wire.LifecycleRequest{Reason: "CHG-204"})
//	if err != nil {
//		return err
//	}
//	op, err := c.WaitOperation(ctx, started.Operation.OperationID)
//
// A node is named by its ID or its host name. Every unsuccessful response is an [*Error], with the
// code, the reason, the next step and the correlation ID that the server sent.
//
// The client sends a request again, after the time that the response names in Retry-After, if it was
// rejected with 429, and after 503 or a lost connection if it is safe to repeat: a GET, a PUT, or a
// request with an idempotency key. The methods of [Client] that need a key make one for each call;
// set another one with [WithIdempotencyKey], for example to repeat a call after a restart of your
// program.
//
// [Client.API] has the endpoints for which Client has no method; read their responses with [Decode].
package client
