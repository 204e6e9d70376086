// Package doctor checks the way from a node to the node API, one layer after the other: the
// name, the connection, the server's certificate, the route, and whether the API accepts the
// node's certificate. It changes nothing on the node. The API counts a request with the node's
// certificate as a use of it.
package doctor
