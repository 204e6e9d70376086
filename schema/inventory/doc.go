// Package inventory describes machines: SKUs, classes, and the facts and probe
// reports that agents collect.
package inventory
