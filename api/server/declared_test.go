package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
)

// undeclared says that a refusal's code is none that its route declares, so that
// every test of a refusal holds the handlers to the API document. What no route
// answered declares nothing.
func undeclared(req *http.Request, a reply) error {
	if a.status < http.StatusBadRequest {
		return nil
	}
	var b schema.ErrorBody
	if err := json.Unmarshal(a.body, &b); err != nil {
		return fmt.Errorf("a refusal that is no envelope: %w", err)
	}
	mux, codes := http.NewServeMux(), map[string][]schema.Kind{}
	for _, r := range append(nodeapi.New(nodeapi.Config{}).Routes(), adminapi.New(adminapi.Config{}).Routes()...) {
		pattern := r.Method + " " + r.Path
		if codes[pattern] == nil { // both listeners have the readiness check
			mux.Handle(pattern, http.NotFoundHandler())
		}
		codes[pattern] = r.Codes()
	}
	_, pattern := mux.Handler(req)
	if pattern == "" || slices.Contains(codes[pattern], b.Error.Code) {
		return nil
	}
	return fmt.Errorf("%s answered %d with a code that it does not declare: %s", pattern, a.status, a.body)
}
