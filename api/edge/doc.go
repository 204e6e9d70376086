// Package edge is the HTTP layer that the node API and the admin API share: the
// route table, the correlation id, strict bodies, the error envelope, request
// deadlines, panic recovery and one access log line per request. Handlers return
// errors; only this package writes error responses. Start with Route and New.
package edge
