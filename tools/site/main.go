// Command site renders the Markdown pages of the repository as a static site: one HTML file for each page,
// the HTTP API from schema/openapi.yaml, and the pictures. The site has no scripts and loads nothing from
// other hosts.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "root of the repository")
	out := flag.String("out", "../../.cache/site", "folder for the site, which is replaced")
	flag.Parse()
	pages, err := build(*root, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pages in %s\n", pages, *out)
}
