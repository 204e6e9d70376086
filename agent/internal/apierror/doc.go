// Package apierror classifies the node API's errors that more than one package
// handles.
package apierror
