// Package helm holds the Helm chart of the control plane, and its tests. They run the version of Helm
// that tools/helm pins.
package helm
