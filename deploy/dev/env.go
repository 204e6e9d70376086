package dev

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func newEnv(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "env [worker|api|setup]", Short: "Print the environment variables of the stack",
		Long: `Print shell commands that export the addresses of the stack, the bearer token of
its admin API, which is a secret, and the configuration of gpuaas admin setup. gpuaas
commands in that shell use this stack.

With an argument, print the complete configuration of one program, to run it
manually: worker (gpuaas-worker), api (gpuaas-api), or setup (gpuaas admin setup).
This output contains the names of files with secrets, but no secrets.`,
		Example: `  eval "$(gpuaas dev env)"
  (eval "$(gpuaas dev env worker)"; go run ./cmd/gpuaas-worker)`,
		ValidArgs: []string{partWorker, partAPI, "setup"},
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactArgs("PROGRAM")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			s, err := openStack(o.dir, o.stderr)
			if err != nil {
				return err
			}
			v, err := s.variablesOf(c, args)
			if err != nil {
				return err
			}
			return o.print(v.object(), func(w io.Writer) { fmt.Fprint(w, v.exports()) })
		},
	}
}

func (s *stack) variablesOf(c *cobra.Command, args []string) (variables, error) {
	switch strings.Join(args, " ") {
	case "":
		token, err := ensureSecret(s.layout.adminToken())
		return append(s.record.shell(token), setupVariables(s.layout)...), err
	case partWorker:
		return s.record.worker(s.layout), nil
	case partAPI:
		return s.apiVariables(), nil
	case "setup":
		return s.record.setup(s.layout), nil
	}
	return nil, &UsageError{Command: c.CommandPath(), Message: "unknown program " + args[0] + ": use worker, api or setup"}
}

// object returns the variables by name.
func (v variables) object() map[string]string {
	m := make(map[string]string, len(v))
	for _, x := range v {
		if x.value != "" {
			m[x.name] = x.value
		}
	}
	return m
}
