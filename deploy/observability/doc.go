// Package observability holds the alert rules, the Grafana dashboards, and the test that
// compares them and docs/reference/metrics.md with the metrics of the programs.
package observability
