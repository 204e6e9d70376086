// Package edge is what the node API and the admin API share at the HTTP edge:
// a table of routes, the correlation id, strict bodies, the error envelope, the
// deadline of a request, panic recovery and one access log line for each
// request. Handlers return errors; this package alone turns them into answers.
// Start with Route and New.
package edge
