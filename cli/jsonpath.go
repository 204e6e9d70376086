package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/theory/jsonpath"
)

// parsePath parses the expression of -o jsonpath: RFC 9535, or the same in kubectl's
// form {.nodes[*].host}.
func parsePath(expression string) (*jsonpath.Path, error) {
	if inner, ok := strings.CutPrefix(expression, "{"); ok {
		expression = strings.TrimSuffix(inner, "}")
	}
	if !strings.HasPrefix(expression, "$") {
		expression = "$" + expression
	}
	return jsonpath.Parse(expression)
}

// printPath prints the values that the expression selects from a JSON text, one per
// line: strings as they are, other values as JSON.
func (e *console) printPath(expression string, text []byte) error {
	path, err := parsePath(expression)
	if err != nil {
		return usagef("gpuaas", "-o jsonpath: %s", err)
	}
	var document any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&document); err != nil {
		return fmt.Errorf("reading the output for -o jsonpath: %w", err)
	}
	for _, value := range path.Select(document) {
		line, isText := value.(string)
		if !isText {
			rendered, err := json.Marshal(value)
			if err != nil {
				return fmt.Errorf("rendering a value for -o jsonpath: %w", err)
			}
			line = string(rendered)
		}
		fmt.Fprintln(e.stdout, clean(line))
	}
	return nil
}
