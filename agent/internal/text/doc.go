// Package text bounds and cleans text from outside, and renders times.
package text
