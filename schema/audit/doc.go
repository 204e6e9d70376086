// Package audit holds the audit trail's events and their hash chain.
package audit
