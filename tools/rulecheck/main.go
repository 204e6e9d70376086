// Command rulecheck parses files of alert rules as Prometheus does: the form of the file, the
// expressions, and the templates of labels and annotations. It uses the parser of promtool without
// promtool's service discovery, which takes minutes to build.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
)

func main() {
	if !check(os.Args[1:]) {
		os.Exit(1)
	}
}

// check reports whether all files are valid, and prints what is not.
func check(files []string) bool {
	valid := len(files) > 0
	for _, file := range files {
		_, errs := rulefmt.ParseFile(file, false, model.LegacyValidation)
		for _, err := range errs {
			fmt.Fprintln(os.Stderr, err)
		}
		valid = valid && len(errs) == 0
	}
	return valid
}
