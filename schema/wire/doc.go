// Package wire holds the bodies and headers of the node API and the admin API.
package wire
