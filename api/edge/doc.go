// Package edge is the HTTP layer that the node API, the admin API and the console
// share: the route table, the correlation id, strict bodies, the error envelope,
// request deadlines, panic recovery and one access log line per request. Handlers
// return errors, which this package writes as envelopes; the console writes its own
// as pages. Start with Route and New.
package edge
