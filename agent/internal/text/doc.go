// Package text bounds and cleans text from outside, and renders times and digests.
package text
